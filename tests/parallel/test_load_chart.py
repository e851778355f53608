"""The chart says what was counted, and what the plan expects."""

from minipaged.parallel.balance import Balance, make_plan, place_evenly
from minipaged.parallel.load_chart import bar, draw_load


def test_each_rank_has_a_bar_before_and_after():
    load, old = [800, 200, 100, 100], place_evenly(4, 2, num_redundant=2)
    title, first, second = draw_load([Balance(load, old, make_plan(load, old))])
    assert title == "layer 0: 1,200 rows to 4 experts, balance 0.60 -> 1.00, 3 copied"
    full, part = "█" * 20, "█" * 12
    assert first == f"  rank 0 {full}   1,000  e0 800  e1 200  ->  {part:<20}     600  e0 e1 e2"
    assert second == f"  rank 1 ████                     200  e2 100  e3 100  ->  {part:<20}     600  e0 e3 e1"


def test_one_rank_has_all_and_nothing_to_compare():
    alone = ((0, 1),)
    assert draw_load([Balance([3, 4], alone, alone)] * 2)[2:] == ["layer 1: 7 rows to 2 experts", "  e0 3  e1 4"]


def test_nothing_asked_is_no_division_by_zero():
    old = place_evenly(2, 2)
    title, *ranks = draw_load([Balance([0, 0], old, old)])
    assert "balance 1.00 -> 1.00, 0 copied" in title
    assert not any("█" in line for line in ranks)


def test_a_bar_is_drawn_to_an_eighth():
    assert [bar(share) for share in (0, 1 / 160, 0.5, 1)] == ["", "▏", "█" * 10, "█" * 20]
