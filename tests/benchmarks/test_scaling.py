"""A step of the engine does the same work whatever is not in it: counted, not timed.

lines      of Python that a step runs, by the interpreter's own trace
memory     that a step asks for at most, which sees what is copied in C as well"""

import json
import sys
import tracemalloc

import pytest

pytest.importorskip("matplotlib", reason="matplotlib comes with the extra named bench")

from benchmarks import plot, scaling
from benchmarks.scaling import AXES, StandIn, main, make_engine
from benchmarks.scaling_plot import axes_of

SMALL = {"batch": 3, "context": 40, "blocks": 100, "waiting": 0, "behind": 0, "said": 0}
NUM_BLOCK_BYTES = 64  # at most, for a block of 16 tokens in a table: it is copied into the batch, and into a tensor


def count_lines(engine):
    """That one step runs, in files of the house."""
    count = 0

    def trace(frame, event, argument):
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        engine.step()
    finally:
        sys.settrace(before)
    return count


def count_bytes(engine):
    """That one step holds at most beyond what it found."""
    tracemalloc.start()
    try:
        engine.step()  # what is made once, is made
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        engine.step()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def make(**setting):
    engine = make_engine(StandIn(), **{**SMALL, **setting})
    for _ in range(3):
        engine.step()
    return engine


def never_at_a_blocks_border(engine):
    """Steps on until the next one needs no new block: whoever needs one does more, and may."""
    while any(len(seq.tokens) % scaling.BLOCK_SIZE > 8 for seq in engine.scheduler.running):
        engine.step()
    return engine


@pytest.mark.parametrize(
    ("axis", "few", "many"),
    [("blocks", 100, 100_000), ("waiting", 0, 3_000), ("behind", 0, 2_000), ("said", 0, 2_000), ("context", 40, 4_000)],
)
def test_a_step_does_the_same_whatever_is_not_in_it(axis, few, many):
    small, large = (never_at_a_blocks_border(make(**{axis: number})) for number in (few, many))
    assert count_lines(large) == count_lines(small)


@pytest.mark.parametrize(("axis", "few", "many"), [("blocks", 100, 100_000), ("waiting", 0, 3_000), ("behind", 0, 500)])
def test_nor_does_it_copy_what_is_not_in_it(axis, few, many):
    small, large = (never_at_a_blocks_border(make(**{axis: number})) for number in (few, many))
    assert count_bytes(large) - count_bytes(small) < 2_000


def test_of_a_context_only_block_tables_are_copied():
    small, large = (never_at_a_blocks_border(make(context=context)) for context in (40, 4_040))
    num_blocks = SMALL["batch"] * 4_000 // scaling.BLOCK_SIZE
    assert count_bytes(large) - count_bytes(small) < num_blocks * NUM_BLOCK_BYTES + 2_000


def test_an_output_is_one_copy_of_what_was_said():
    small, large = (never_at_a_blocks_border(make(said=said)) for said in (0, 3_200))
    tables = SMALL["batch"] * 3_200 // scaling.BLOCK_SIZE * NUM_BLOCK_BYTES
    assert count_bytes(large) - count_bytes(small) < SMALL["batch"] * 3_200 * 8 + tables + 2_000


def test_whoever_is_in_the_step_is_paid_for():
    small, large = (never_at_a_blocks_border(make(batch=batch)) for batch in (2, 20))
    assert count_lines(large) > 5 * count_lines(small)


def test_a_run_writes_every_point_a_table_and_a_picture(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(scaling, "QUICK", {axis: points[:2] for axis, points in AXES.items()})
    monkeypatch.setattr(scaling, "STEPS", 3)
    out = tmp_path / "results" / "scaling.json"
    assert main(["--quick", "--axes", "batch,waiting", "--out", str(out)]) == 0
    document = json.loads(out.read_text())
    assert axes_of(document) == ["batch", "waiting"]
    assert [point["x"] for point in document["points"]] == [1, 2, 0, 10]
    assert all(0 < point["own_ms"] <= point["step_ms"] for point in document["points"])
    assert (tmp_path / "figures" / "scaling.png").stat().st_size > 10_000
    assert "requests that wait" in capsys.readouterr().out
    assert plot.main([str(out), "--out", str(tmp_path / "again")]) == 0
    assert (tmp_path / "again" / "scaling.png").stat().st_size > 10_000


def test_an_unknown_axis_is_refused(tmp_path, capsys):
    assert main(["--axes", "width", "--out", str(tmp_path / "x" / "s.json")]) == 2
    assert "--axes width: there are batch, context, blocks, waiting, behind, said" in capsys.readouterr().err
