"""python -m levels: the ladder, what a level changed, and one line for whatever cannot be."""

import runpy
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import levels
from levels import NAMES
from levels.__main__ import diff, main
from minipaged.cli import DONE, FAILED, REFUSED

ROOT = Path(__file__).parents[2]


def refused(argv: list[str], capsys: Any) -> str:
    """The one line of a refusal, whether the parser says it or the command."""
    try:
        code: Any = main(argv)
    except SystemExit as end:
        code = end.code
    out, err = capsys.readouterr()
    assert (code, out, err.count("\n")) == (REFUSED, "", 1)
    return str(err)


def test_the_ladder_has_name_question_claim_and_command(capsys: Any) -> None:
    assert main([]) == DONE
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if line.startswith("0")] == NAMES
    assert "02_paged_attention  Who reserves what they never use?" in lines
    assert "    python -m levels.03_continuous_batching" in lines
    assert len(lines) == 4 * len(NAMES)  # no sentence is broken


def test_a_diff_is_what_changed_and_its_size(capsys: Any) -> None:
    assert main(["diff", "2", "3"]) == DONE
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["--- 02_paged_attention", "+++ 03_continuous_batching"]
    assert lines[-1].startswith("level 02 -> 03: +")
    added = sum(line.startswith("+") for line in lines[2:-1])
    removed = sum(line.startswith("-") for line in lines[2:-1])
    assert lines[-1] == f"level 02 -> 03: +{added} -{removed} lines"
    assert any(line.startswith("+") and "max_num_batched_tokens" in line for line in lines)


def test_a_level_does_not_differ_from_itself() -> None:
    assert diff(2, 2) == ["level 02 -> 02: +0 -0 lines\n"]


def test_every_two_levels_can_be_compared() -> None:
    for a in range(1, len(NAMES) + 1):
        for b in range(1, len(NAMES) + 1):
            assert diff(a, b)[-1].startswith(f"level {a:02} -> {b:02}")


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["diff", "1", "99"], f"level 99 is not among 1 to {len(levels.NAMES)}"),
        (["diff", "0", "1"], f"level 0 is not among 1 to {len(levels.NAMES)}"),
        (["diff", "-1", "1"], f"level -1 is not among 1 to {len(levels.NAMES)}"),
        (["diff", "two", "3"], "two"),
        (["diff", "2"], "B"),
        (["diff"], "A, B"),
        (["climb"], "climb"),
        (["--nonsense"], "--nonsense"),
        (["compare", "--nonsense"], "--nonsense"),
    ],
)
def test_what_cannot_be_is_one_line(argv: list[str], named: str, capsys: Any) -> None:
    assert named in refused(argv, capsys)


@pytest.mark.parametrize("argv", [["--help"], ["diff", "--help"], ["compare", "--help"]])
def test_help_fits_the_terminal(argv: list[str], capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as end:
        main(argv)
    assert end.value.code == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) < 80


def test_a_level_is_loaded_by_its_number() -> None:
    assert levels.load(3).__name__ == "levels.03_continuous_batching.engine"
    assert levels.load(3, "demo").CONFIG["max_num_seqs"] == 4
    with pytest.raises(ValueError, match=f"level {len(levels.NAMES) + 1} is not among"):
        levels.load(len(NAMES) + 1)


def test_a_reader_that_leaves_early_is_no_traceback() -> None:
    command = f"{sys.executable} -m levels | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.stderr == ""
    assert done.returncode in (0, 1)


@pytest.mark.parametrize("name", NAMES)
def test_ctrl_c_once_more_while_the_first_is_being_told_is_no_traceback(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def main(number: int) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("levels.lesson.main", main)
    handlers = list[tuple[int, object]]()
    monkeypatch.setattr("signal.signal", lambda *handler: handlers.append(handler))
    with pytest.raises(SystemExit) as end:
        runpy.run_module(f"levels.{name}", run_name="__main__")
    assert end.value.code == FAILED
    assert (signal.SIGINT, signal.SIG_IGN) in handlers
