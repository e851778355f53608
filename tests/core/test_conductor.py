"""A wave is one turn after the other for all, as long as anybody has work; when it is over, experts move."""

from types import SimpleNamespace

import pytest

from minipaged.config import EngineConfig
from minipaged.core.conductor import Conductor, NoConductor, make_conductor
from minipaged.core.messages import Turn
from minipaged.parallel.data_parallel import DataParallelEngine
from minipaged.trace import Occupancy

NOBODY, ONE_RUNS = Occupancy(0, 0, 8, 8), Occupancy(0, 1, 6, 8)


class Band:
    """Replicas that do as they are told, when `play` says so."""

    def __init__(self, num_replicas=2):
        self.living = [SimpleNamespace(index=index, num_turns=0, occupancy=NOBODY) for index in range(num_replicas)]
        self.entries, self.told, self.wire = {}, [], self

    def send(self, index, command):
        assert isinstance(command, Turn)
        self.told.append(index)

    def ask(self, what):
        self.told.append(what)

    def play(self, index):
        self.living[index].num_turns += 1


@pytest.fixture
def band():
    return Band()


def test_all_have_a_turn_when_all_have_done_the_one_before(band):
    conductor = Conductor(moves_experts=False)
    conductor.conduct(band)
    assert band.told == [], "nobody has work"
    band.entries = {0: "a request"}
    conductor.conduct(band)
    conductor.conduct(band)
    assert band.told == [0, 1]
    band.play(1)
    conductor.conduct(band)
    assert band.told == [0, 1], "replica 0 is still at it"
    band.play(0)
    conductor.conduct(band)
    assert band.told == [0, 1, 0, 1]


def test_an_engine_moves_experts_only_when_the_turn_that_was_under_way_is_over(band, monkeypatch):
    """Its last request was aborted: nobody is live, but not every replica has run the last batch."""
    engine = object.__new__(DataParallelEngine)
    engine.replicas, engine.desk, engine.heard = band, SimpleNamespace(live={}), []
    band.conductor, band.entries = Conductor(moves_experts=False), {0: "a request"}
    band.conductor.conduct(band)
    band.entries = {}
    band.play(0)
    band.poll = lambda: band.play(1) or []
    monkeypatch.setattr(engine, "ask", lambda what: band.told.append((what, band.living[1].num_turns)))
    engine.rebalance()
    assert band.told == [0, 1, ("rebalance", 1)]


def test_turns_go_on_until_whoever_has_left_in_flight_has_landed(band):
    conductor, band.entries = Conductor(moves_experts=True), {0: "a request"}
    conductor.conduct(band)
    band.entries = {}  # it is aborted
    for occupancy in (ONE_RUNS, NOBODY):
        band.told, band.living[1].occupancy = [], occupancy
        band.play(0)
        band.play(1)
        assert conductor.is_at_rest(band) == (occupancy is NOBODY)
        conductor.conduct(band)
        assert band.told == ([0, 1] if occupancy is ONE_RUNS else ["rebalance"])


@pytest.mark.parametrize("moves_experts", [True, False])
def test_experts_move_once_when_a_wave_is_over(band, moves_experts):
    conductor = Conductor(moves_experts)
    for _ in range(2):
        band.told, band.entries = [], {0: "a request"}
        conductor.conduct(band)
        band.entries = {}
        conductor.conduct(band)
        assert band.told == [0, 1], "a turn is still under way"
        band.play(0)
        band.play(1)
        conductor.conduct(band)
        conductor.conduct(band)
        assert band.told == [0, 1] + ["rebalance"] * moves_experts


def test_only_who_shares_experts_is_conducted():
    def conductor(**fields):
        return make_conductor(EngineConfig(**fields))

    assert isinstance(conductor(data_parallel_size=2), NoConductor)
    assert isinstance(conductor(enable_expert_parallel=True), NoConductor)
    together = conductor(data_parallel_size=2, enable_expert_parallel=True)
    assert (type(together), together.moves_experts) == (Conductor, False)
    assert conductor(data_parallel_size=2, enable_expert_parallel=True, enable_eplb=True).moves_experts
