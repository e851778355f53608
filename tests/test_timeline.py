"""A picture is right where it can be counted: cells, shares, windows."""

import pytest

from minipaged.timeline import Window, busy_s, busy_share, common_window, draw, middle

ALTERNATING = [[(0.0, 1.0), (2.0, 3.0), (4.0, 5.0)], [(1.0, 2.0), (3.0, 4.0), (5.0, 6.0)]]


def test_with_one_batch_in_flight_one_works_and_the_other_waits():
    window = common_window(ALTERNATING)
    assert window == Window(1.0, 5.0)
    assert busy_share(ALTERNATING, window) == pytest.approx(0.5)
    assert [draw(stage, window, 8) for stage in ALTERNATING] == ["  ██  ██", "██  ██  "]


def test_a_stage_that_never_waits_is_a_bar():
    always = [(i / 4, (i + 1) / 4) for i in range(16)]
    window = common_window([always, always])
    assert busy_share([always, always], window) == pytest.approx(1.0)
    assert draw(always, window, 10) == "█" * 10


def test_only_what_lies_in_the_window_counts():
    assert busy_s([(0.0, 2.0), (3.0, 9.0)], Window(1.0, 4.0)) == 2.0
    assert busy_s([(0.0, 1.0)], Window(1.0, 4.0)) == 0.0


def test_the_middle_of_a_window_is_as_long_as_it_may_be():
    assert middle(Window(0.0, 10.0), 4.0) == Window(3.0, 7.0)
    assert middle(Window(2.0, 5.0), 4.0) == Window(2.0, 5.0)
