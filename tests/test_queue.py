"""Sorted by its policy's key, always: whoever comes back finds its own place."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipaged.queue import RequestQueue
from minipaged.sampling_params import SamplingParams
from minipaged.sequence import Sequence


def sequence(arrival, priority=0, choice=0):
    return Sequence(str(arrival), [5], SamplingParams(), 10, arrival=arrival, choice=choice, priority=priority)


@pytest.mark.parametrize(("policy", "order"), [("fcfs", ["0", "1", "2", "3"]), ("priority", ["2", "0", "3", "1"])])
def test_priority_counts_only_under_priority_and_a_smaller_number_first(policy, order):
    queue = RequestQueue(policy)
    for arrival, priority in [(3, 1), (1, 2), (0, 1), (2, -5)]:
        queue.push(sequence(arrival, priority))
    assert [seq.request_id for seq in queue] == order


@given(priorities=st.lists(st.integers(0, 2), min_size=1, max_size=8), data=st.data())
@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_whoever_leaves_and_comes_back_finds_its_own_place(policy, priorities, data):
    queue = RequestQueue(policy)
    for arrival, priority in enumerate(priorities):
        for choice in range(1 + arrival % 2):
            queue.push(sequence(arrival, priority, choice))
    before = list(queue)
    for seq in data.draw(st.permutations(before)):
        queue.remove(seq)
        queue.push(seq)
        assert queue == before
