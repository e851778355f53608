"""Every expert stays somewhere, nobody twice on a rank, and a plan is never worse than what it replaces."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipaged.parallel.balance import (
    balancedness,
    list_moves,
    make_plan,
    pack,
    place_evenly,
    replicate,
    spread,
)


@st.composite
def worlds(draw):
    """The load of each expert, and where the experts are."""
    load = draw(st.lists(st.integers(0, 20) | st.just(1000), min_size=1, max_size=12))
    num_ranks, num_redundant = draw(st.integers(1, 5)), draw(st.integers(0, 6))
    return load, place_evenly(len(load), num_ranks, num_redundant)


def experts_of(placement):
    return [[expert for expert in slots if expert is not None] for slots in placement]


def check(load, placement, num_slots):
    everywhere = Counter(expert for held in experts_of(placement) for expert in held)
    assert set(everywhere) == set(range(len(load)))
    assert all(len(set(held)) == len(held) for held in experts_of(placement))
    assert {len(slots) for slots in placement} == {num_slots}
    assert sum(spread(load, placement)) == pytest.approx(sum(load))


@given(worlds())
def test_every_expert_is_somewhere_and_nowhere_twice(world):
    load, placement = world
    check(load, placement, len(placement[0]))
    check(load, make_plan(load, placement), len(placement[0]))


@given(worlds())
def test_a_plan_is_never_worse_and_planning_again_moves_nobody(world):
    load, old = world
    new = make_plan(load, old)
    assert balancedness(spread(load, new)) >= balancedness(spread(load, old))
    assert make_plan(load, new) == new
    assert new == old or balancedness(spread(load, new)) > balancedness(spread(load, old))


@given(worlds(), st.randoms())
def test_moves_make_the_new_placement_from_the_old_one(world, random):
    load, old = world
    new = make_plan([random.choice(load) for _ in load], old)
    slots = {(rank, slot): expert for rank, held in enumerate(old) for slot, expert in enumerate(held)}
    moves = list_moves(old, new)
    moved = slots | {move.target: slots[move.source] for move in moves}
    for rank, held in enumerate(new):
        for slot, expert in enumerate(held):
            assert expert is None or moved[rank, slot] == expert
    assert all(move.source[0] != move.target[0] for move in moves), "who has it needs no copy"
    assert all(slots[move.source] == move.expert for move in moves)


def test_as_even_as_can_be_at_first_and_what_is_redundant_is_free():
    assert place_evenly(5, 2) == ((0, 1, 2), (3, 4, None))
    assert place_evenly(2, 3) == ((0,), (1,), (None,))
    assert place_evenly(4, 2, num_redundant=2) == ((0, 1, None), (2, 3, None))


def test_the_example_of_the_first_page():
    old = place_evenly(4, 2, num_redundant=2)
    assert balancedness(spread([8, 2, 1, 1], old)) == 0.6
    assert replicate([8, 2, 1, 1], 2, 3) == [2, 2, 1, 1]
    new = make_plan([8, 2, 1, 1], old)
    assert new == ((0, 1, 2), (0, 3, 1))
    assert spread([8, 2, 1, 1], new) == [6, 6]


def test_without_spare_slots_hot_experts_change_ranks():
    old = place_evenly(4, 2)
    new = make_plan([10, 10, 1, 1], old)
    assert spread([10, 10, 1, 1], new) == [11, 11]
    assert len(list_moves(old, new)) == 2


def test_nothing_to_do_is_balanced_and_no_reason_to_move():
    old = place_evenly(6, 3, num_redundant=3)
    assert balancedness([0, 0, 0]) == 1
    assert make_plan([0] * 6, old) == old
    assert balancedness([6, 0, 0]) == pytest.approx(1 / 3)


def test_a_copy_that_finds_no_rank_without_its_like_is_left_out():
    assert pack([1, 1], [2, 1], 2, 1) in ([[0], [1]], [[1], [0]])
