"""The least loaded is next, or whoever has read most of it before; what was just sent counts at once."""

import pytest

from minipaged.config import EngineConfig
from minipaged.core.router import SLACK, LeastLoaded, LongestMatch, Replica, make_router
from minipaged.trace import Occupancy


def replicas(*loads):
    """(waiting, running) each."""
    return [Replica(i, Occupancy(waiting, running, 8, 8)) for i, (waiting, running) in enumerate(loads)]


def send(router, living, prompt, salt=None):
    """As the front does: a choice counts before anybody has seen it."""
    chosen = router.choose(living, prompt, salt)
    chosen.unseen[chosen.num_sent] = 1
    chosen.num_sent += 1
    return chosen.index


@pytest.mark.parametrize(
    ("loads", "expected"),
    [([(0, 0), (0, 0)], 0), ([(1, 0), (0, 3)], 1), ([(1, 0), (0, 5)], 0), ([(2, 9), (0, 9), (1, 0)], 2)],
)
def test_a_waiting_request_weighs_four_running_ones(loads, expected):
    assert LeastLoaded().choose(replicas(*loads), [5], None).index == expected


def test_a_burst_is_spread_before_anybody_answers():
    living, router = replicas((0, 0), (0, 0), (0, 8)), LeastLoaded()
    assert [send(router, living, [5]) for _ in range(7)] == [0, 1, 0, 1, 2, 0, 1]  # two waiting weigh eight running


def test_of_equals_the_one_that_was_sent_the_fewest():
    living, router = replicas((0, 0), (0, 0)), LeastLoaded()
    chosen = []
    for _ in range(4):
        chosen.append(send(router, living, [5]))
        living[chosen[-1]].unseen.clear()  # it has come to its end
    assert chosen == [0, 1, 0, 1]


def test_the_longest_match_wins_among_those_who_are_not_much_busier():
    living, router = replicas((0, 0), (0, 0)), LongestMatch(block_size=2, num_blocks=100)
    first, other = [1, 2, 3, 4, 5], [9, 9, 9]
    assert [send(router, living, prompt) for prompt in (first, other)] == [0, 1]
    assert send(router, living, [1, 2, 3, 4, 7, 7]) == 0
    assert send(router, living, [1, 2, 8, 8]) == 0
    assert send(router, living, [9, 9, 8, 8]) == 1
    while living[0].load <= living[1].load + SLACK:
        assert send(router, living, first) == 0
    assert send(router, living, first) == 1
    assert send(router, living, first) == 1, "both know it now, and this one has less to do"


def test_a_salt_is_part_of_a_name_and_what_was_said_is_known_too():
    living, router = replicas((0, 0), (0, 0)), LongestMatch(block_size=2, num_blocks=100)
    assert send(router, living, [1, 2, 3], "a") == 0
    assert send(router, living, [1, 2, 3], "b") == 1
    router.learn(living[1], [1, 2, 3, 4, 5, 6], "a")
    living[0].unseen.clear()
    assert send(router, living, [1, 2, 3, 4, 9], "a") == 1
    assert router.count(living[1], list(router.names([1, 2, 3, 4, 5, 6], "a"))) == 3


def test_no_more_is_remembered_than_the_pool_holds_and_tails_go_first():
    living, router = replicas((0, 0)), LongestMatch(block_size=1, num_blocks=4)
    names = list(router.names([1, 2, 3], None))
    router.learn(living[0], [1, 2, 3], None)
    router.learn(living[0], [7, 8], None)
    assert router.count(living[0], names) == 2
    assert len(router.known[0]) == 4


def test_config_chooses():
    config = EngineConfig(num_blocks=9)
    assert isinstance(make_router(config), LeastLoaded)
    assert isinstance(make_router(EngineConfig(num_blocks=9, data_parallel_router="prefix")), LongestMatch)
