"""The picture fits its terminal and never disturbs the run it shows."""

import io
import time
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text

from levels import load
from minipaged import display
from minipaged.config import EngineConfig
from minipaged.driver import Request, Run
from minipaged.sampling_params import SamplingParams

from .fake_model import FakeModel

LEVELS = (1, 2, 3)


def make_run(level: int, num_requests: int = 3, *, n: int = 6, m: int = 6, num_choices: int = 1, **config: Any) -> Run:
    config = {"block_size": 4, "num_blocks": 64, "max_model_len": 64, **config}
    params = SamplingParams(n=num_choices, temperature=0, max_tokens=m, ignore_eos=True)
    engine = load(level).Engine(EngineConfig(**config), FakeModel())
    return Run(engine, [Request([2] * n, params) for _ in range(num_requests)], numbered=True)


def terminal(width: int = 80, height: int = 24) -> Console:
    return Console(force_terminal=True, file=io.StringIO(), width=width, height=height, color_system=None)


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def lines_at(run: Run, num_steps: int, width: int = 80, height: int = 24) -> list[str]:
    """The picture after so many steps, as lines of text."""
    drawn: list[str] = []

    def on_step(asked: Run, outputs: Any) -> None:
        if asked.num_steps == num_steps:
            console = terminal(width, height)
            console.print(display.draw(asked, "title", width, height))
            drawn.extend(written(console).splitlines())

    run.go(on_step)
    return drawn


@pytest.mark.parametrize("level", LEVELS)
def test_a_terminal_shows_every_request_and_the_pool(level: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(display, "REDRAW_S", 0.0)
    console = terminal()
    with display.watch(console, "the title") as on_step:
        run = make_run(level).go(on_step)
    text = written(console)
    for expected in ("the title", "writing 3/6", "length, 6 tokens", "■", "tokens/s", "blocks free"):
        assert expected in text
    assert [record.output.finished for record in run.records if record.output] == [True] * 3


def test_a_row_tells_reading_writing_waiting_and_done() -> None:
    run = make_run(3, 3, n=12, m=4, max_num_batched_tokens=8, max_num_seqs=2)
    assert [line.split(maxsplit=1)[1].split("·")[-1].strip() for line in lines_at(run, 1)[1:4]] == [
        "reading 8/12",
        "waiting",
        "waiting",
    ]
    line = lines_at(make_run(3, 1, n=6, m=6), 3)[1]
    assert line == "   0 " + "▒" * 16 + "▓" * 8 + "·" * 8 + "  writing 3/6"


def test_a_row_shows_all_choices_of_a_request_as_one() -> None:
    run = make_run(3, 1, n=4, m=4, num_choices=3, max_num_seqs=2)
    assert lines_at(run, 2)[1] == "   0 " + "▒" * 8 + "▓" * 8 + "·" * 16 + "  writing 4/12"
    assert lines_at(make_run(3, 2, n=4, m=4, num_choices=3, max_num_seqs=3), 5)[1].endswith("  length, 12 tokens")


def test_a_request_that_gave_way_says_so() -> None:
    run = make_run(3, 2, n=7, m=8, num_blocks=5, max_num_batched_tokens=64)
    rows = [row for num_steps in range(1, 8) for row in lines_at(make_run(3, 2, n=7, m=8, num_blocks=5), num_steps)]
    assert any("preempted, " in row for row in rows)
    assert run.num_steps == 0


def test_the_pool_shows_who_holds_what_and_what_is_reserved_in_vain() -> None:
    lines = lines_at(make_run(1, 2, max_model_len=64, num_blocks=48), 1)
    assert lines[3] == "■□□□■□□□····"  # three rows of 64 slots, a cell for each 16
    lines = lines_at(make_run(2, 2, num_blocks=12), 1)
    assert lines[3] == "■■■■········"  # six tokens each: two blocks of 4


@pytest.mark.parametrize(("width", "height"), [(80, 24), (40, 12), (200, 60)])
@pytest.mark.parametrize("level", LEVELS)
def test_the_picture_fits_its_terminal(level: int, width: int, height: int) -> None:
    run = make_run(level, 40, num_blocks=4096, max_num_seqs=30)
    lines = lines_at(run, 2, width, height)
    assert 4 < len(lines) < height
    assert all(Text(line).cell_len <= width for line in lines)


@pytest.mark.parametrize(("width", "height"), [(20, 6), (5, 3), (1, 1)])
def test_an_absurd_terminal_is_no_failure(width: int, height: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(display, "REDRAW_S", 0.0)
    with display.watch(terminal(width, height), "title") as on_step:
        run = make_run(3, 40).go(on_step)
    assert all(record.output.finished for record in run.records if record.output)


def test_who_runs_is_shown_before_who_waits_and_who_is_done() -> None:
    run = make_run(3, 40, max_num_seqs=4, m=2)
    rows = [line for line in lines_at(run, 5, height=24) if "/2" in line]
    assert [int(row.split()[0]) for row in rows] == [8, 9, 10, 11]


def test_a_large_pool_is_shown_by_its_beginning_and_costs_little() -> None:
    run = make_run(1, 64, max_model_len=131_072, block_size=16, num_blocks=64 * 8192, m=3)
    start = time.perf_counter()
    lines = lines_at(run, 2)
    assert time.perf_counter() - start < 5.0  # 64 rows of 8,192 cells each are not walked
    assert any("and 523," in line for line in lines)


def test_it_redraws_rarely() -> None:
    class Counting:
        console, num_updates = terminal(), 0

        def update(self, picture: Any, refresh: bool) -> None:
            self.num_updates += 1

    live = Counting()
    picture = display.Picture(live, "title")  # type: ignore[arg-type]
    run = make_run(3, 1, m=50)
    run.go(picture)
    assert 1 <= live.num_updates <= 2 + run.wall_s / display.REDRAW_S < run.num_steps


def test_elsewhere_it_prints_a_plain_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(file=io.StringIO(), width=40)
    with display.watch(console, "quick") as on_step:
        make_run(3).go(on_step)
    assert written(console) == ""
    monkeypatch.setattr(display, "LINE_S", 0.0)
    with display.watch(console, "[/odd] name") as on_step:
        make_run(3).go(on_step)
    lines = written(console).splitlines()
    assert len(lines) == 6
    assert lines[-1].startswith("[/odd] name: 3 of 3 done, step 6, 18 tokens, ")
    assert "\x1b" not in written(console)


def test_a_dumb_terminal_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(display, "LINE_S", 0.0)
    console = terminal()
    with display.watch(console, "title") as on_step:
        make_run(3).go(on_step)
    assert written(console).count("title: ") == 6


def test_ids_that_are_no_numbers_are_drawn_too() -> None:
    run = make_run(3, 1)
    for name in ("²", "somebody", "7"):
        run.engine.add_request([2, 3], SamplingParams(temperature=0, max_tokens=6, ignore_eos=True), name)
    assert any(line.startswith("■■■■■") for line in lines_at(run, 2))


def test_an_interrupted_picture_is_cleared_and_the_run_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(display, "REDRAW_S", 0.0)
    console = terminal()
    with display.watch(console, "title") as on_step:

        def watching(run: Run, outputs: Any) -> None:
            on_step(run, outputs)
            if run.num_steps == 2:
                raise KeyboardInterrupt

        run = make_run(2).go(watching)
    assert run.interrupted
    assert "\x1b[?25h" in written(console)  # the cursor is back
