"""A picture is drawn from the documents alone, and what cannot be drawn is refused before anything runs."""

import sys
from pathlib import Path

import pytest

from minipaged.plot import check_plot, plot

from .test_report import interrupted, outcome

SIGNATURES = {".png": b"\x89PNG", ".pdf": b"%PDF", ".svg": b"<?xml"}


@pytest.mark.parametrize("suffix", SIGNATURES)
def test_a_comparison_is_drawn_to_each_kind_of_file(tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib comes with the extra named bench")
    target = tmp_path / f"picture{suffix}"
    check_plot(str(target))
    plot([outcome("01_basic"), outcome(), interrupted()], target)
    assert target.read_bytes().startswith(SIGNATURES[suffix])


@pytest.mark.parametrize("target", ["", "-", "picture", "picture.jpg", "png", ".png"])
def test_another_kind_of_file_is_refused(target: str) -> None:
    with pytest.raises(ValueError, match=r"--plot .*: a picture ends in .png, .pdf, .svg"):
        check_plot(target)


def test_without_matplotlib_the_way_to_get_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ValueError, match=r"--plot needs matplotlib: pip install 'minipaged\[bench\]'"):
        check_plot("picture.png")
