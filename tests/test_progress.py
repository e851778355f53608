"""What long work says, where it says it, and that only what succeeded is called done."""

import io
import sys

import pytest

from minipaged.progress import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_without_a_terminal_there_are_two_plain_lines_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("converting x", 538_000_000) as show:
        show(1_000_000)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == "converting x (538 MB) ...\nconverting x: done in 0 s\n"


def test_work_that_failed_is_not_called_done(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(OSError, match="broken"), progress("converting x", 1):
        raise OSError("broken")
    assert "done" not in capsys.readouterr().err


def test_at_a_terminal_there_is_a_bar_that_ends_full(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress("converting x", 538_000_000) as show:
        show(600_000_000)  # files in transit may be seen twice
    assert "converting x" in terminal.getvalue()
    assert "538.0/538.0 MB" in terminal.getvalue()
