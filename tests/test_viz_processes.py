"""Pictures of several processes show what is in the reports and timings that they are given, with names and units."""

import pytest

matplotlib = pytest.importorskip("matplotlib", reason="matplotlib comes with the extra named bench")

from minipaged import viz_processes as viz  # noqa: E402
from minipaged.parallel.balance import Balance  # noqa: E402
from minipaged.parallel.portion import Portion  # noqa: E402

NOTHING = range(0)


def portion(layers, heads):
    return Portion(layers, heads, NOTHING, NOTHING, NOTHING)


def texts(axes):
    return [text.get_text() for text in axes.texts]


def boxes(axes):
    return [tuple(map(float, (*patch.get_xy(), patch.get_width(), patch.get_height()))) for patch in axes.patches]


def test_each_rank_is_a_rectangle_of_its_layers_and_heads():
    slices = [portion(range(4), range(3)), portion(range(4), range(3, 6))]
    staged = [portion(range(2), range(6)), portion(range(2, 4), range(6))]
    left, right = viz.holdings({"TP 2": slices, "PP 2": staged}).axes
    assert texts(left) == texts(right) == ["rank 0", "rank 1"]
    assert boxes(left) == [(0, 0, 4, 3), (0, 3, 4, 3)]
    assert boxes(right) == [(0, 0, 2, 6), (2, 0, 2, 6)]
    assert (left.get_xlabel(), left.get_ylabel(), left.get_title(loc="left")) == ("layer", "query head", "TP 2")


def test_stages_are_rows_and_batches_are_bars_where_they_began_and_ended():
    alone = [[(0, 1), (2, 3), (4, 5)], [(1, 2), (3, 4), (5, 6)]]
    full = [[(0, 1), (1, 2), (2, 3)], [(1, 2), (2, 3), (3, 4)]]
    upper, lower = viz.stages({"1 in flight": alone, "2 in flight": full}).axes
    assert upper.get_title(loc="left") == "1 in flight: stages work 50% of the time"
    assert lower.get_title(loc="left") == "2 in flight: stages work 100% of the time"
    assert [label.get_text() for label in upper.get_yticklabels()] == ["stage 0", "stage 1"]
    assert {(box[0], box[2]) for box in boxes(upper)} == {(t, 1.0) for t in (-1, 0, 1, 2, 3, 4)}  # from the window on
    assert (lower.get_xlabel(), upper.get_xlim()) == ("seconds", (0, 4))


def test_a_count_stands_in_every_cell():
    left, right = viz.count_map({"a": [[1, 2], [3, 4000]], "b": [[0, 0], [0, 0]]}, "layer", "expert").axes
    assert texts(left) == ["1", "2", "3", "4,000"]
    assert texts(right) == ["0"] * 4
    assert (left.get_xlabel(), left.get_ylabel()) == ("expert", "layer")


def test_what_ranks_were_asked_stands_beside_what_a_plan_makes_of_it():
    balance = Balance([8, 2, 1, 1], ((0, 1, None), (2, 3, None)), ((0, 1, 2), (3, 1, 0)))
    (axes,) = viz.rank_load([balance]).axes
    assert [height for _, _, _, height in boxes(axes)] == [10, 2, 6, 6]
    assert axes.get_title(loc="left") == "layer 0: balance 0.60, then 1.00"
    assert [bool(patch.get_hatch()) for patch in axes.patches] == [True, True, False, False]


def test_a_histogram_counts_everybody_and_marks_half_and_the_last_percent():
    values = [0.1, 0.2, 0.3, 0.4, 1.0]
    (axes,) = viz.histogram({"TTFT": values}, "five").axes
    assert sum(height for _, _, _, height in boxes(axes)) == len(values)
    lines = {line.get_label(): line.get_xdata()[0] for line in axes.lines}
    assert lines == {"p50 0.3 s": 0.3, "p99 0.976 s": pytest.approx(0.976)}
    assert axes.get_xlabel() == "seconds"


def test_moments_are_ticks_in_a_row_each():
    axes = viz.moments({"A": [0.5, 1.0], "B": [2.0]}, "heard").axes[0]
    assert {line.get_label(): list(line.get_xdata()) for line in axes.lines} == {"A": [0.5, 1.0], "B": [2.0]}
    assert [label.get_text() for label in axes.get_yticklabels()] == ["A", "B"]
    assert "seconds" in axes.get_xlabel()


def test_colours_are_those_that_the_colour_blind_can_tell_apart():
    from matplotlib.colors import to_rgb

    from minipaged.viz import COLORS, GROUND

    slices = [portion(range(4), range(i, i + 1)) for i in range(6)]
    (axes,) = viz.holdings({"TP 6": slices}).axes
    assert [patch.get_facecolor()[:3] for patch in axes.patches] == [to_rgb(color) for color in COLORS[:6]]
    assert axes.figure.get_facecolor()[:3] == to_rgb(GROUND)
