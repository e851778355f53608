"""Whatever is in flight is left alone, lands in order, and belongs to whoever it was launched for.

Hypothesis and storms look for a history in which it does not; below them, the single promises. Ranks that are processes
have their own tests, in parallel/: here an executor answers late on purpose."""

import sys
from collections import Counter
from contextlib import contextmanager

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from levels import load
from minipaged.config import EngineConfig
from minipaged.engine import Engine
from minipaged.parallel.executor import UniprocExecutor
from minipaged.sampling_params import SamplingParams

from .fake_model import FakeModel
from .flights import FlyingLife, flight_storm, let_fly
from .guessing import BESTIARY

randoms = st.randoms(use_true_random=False)


class FlightMachine(RuleBasedStateMachine):
    """Any order of arrivals, steps and departures, with batches in flight."""

    @initialize(rng=randoms)
    def build(self, rng):
        self.life = FlyingLife(rng)

    @rule(rng=randoms)
    def something_happens(self, rng):
        self.life.rng = rng
        self.life.something_happens()

    def teardown(self):
        if hasattr(self, "life"):
            self.life.drain()


TestFlights = FlightMachine.TestCase
TestFlights.settings = settings(max_examples=settings.default.max_examples, stateful_step_count=20)


@pytest.mark.parametrize("hundred", range(4))
def test_no_storm_loses_what_is_in_flight_or_gives_it_to_somebody_else(hundred):
    lives = [flight_storm(seed) for seed in range(100 * hundred, 100 * hundred + 100)]
    assert {life.kind for life in lives} == set(BESTIARY)
    steps = [step for life in lives for step in life.engine.trace.steps]
    assert Counter(life.most for life in lives)[4] > 5, "pipelines are filled"
    assert any(step.preempted for step in steps)
    assert any(step.draft_tokens and any(step.cached_tokens.values()) for step in steps)
    assert sum(bool(life.muddled) for life in lives) > 5, "ids are used again while their batch is in flight"


def flying(num_batches=2, **fields):
    fields = {"num_blocks": 64, "block_size": 4, "max_model_len": 64, **fields}
    return let_fly(Engine(EngineConfig(**fields), FakeModel()), num_batches)


def exactly(num_tokens):
    return SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)


def drain(engine):
    """Step to the end: what everybody said, and the steps."""
    said = {}
    while engine.has_unfinished_requests():
        said.update({output.request_id: output.outputs[0].token_ids for output in engine.step()})
        engine.check_integrity()
    return said


@pytest.mark.parametrize(
    ("num_requests", "num_batches", "sizes"), [(4, 2, [2, 2]), (5, 2, [3, 2]), (4, 4, [1] * 4), (3, 4, [1] * 3)]
)
def test_the_batches_in_flight_share_the_requests_evenly(num_requests, num_batches, sizes):
    engine = flying(num_batches)
    for i in range(num_requests):
        engine.add_request([2 + i, 3, 4], exactly(5), str(i))
    seen = []
    while engine.has_unfinished_requests():
        engine.step()
        seen.append(sorted((len(flight.chunks) for flight in engine.in_flight), reverse=True))
    assert seen[len(sizes) - 2] == sizes[:-1], "and the last one has been launched when the first is waited for"
    assert [len(step.num_scheduled_tokens) for step in engine.trace.steps[: len(sizes)]] == sizes


def test_seats_that_nobody_can_take_are_not_shared():
    """A queue that the pool has no room for: those who run are divided, not those who wait."""
    engine = flying(2, num_blocks=16)
    for i in range(12):
        engine.add_request([2 + i] * 7, exactly(6), str(i))
    flying_on = []
    while engine.has_unfinished_requests():
        engine.step()
        if len(engine.scheduler.running) > 1:
            flying_on.append(len(engine.in_flight))
    assert flying_on.count(1) > 0.8 * len(flying_on), "while one lands, the other is under way"


def test_steps_are_recorded_as_they_land_in_the_order_of_launching():
    engine = flying(2)
    for i in range(4):
        engine.add_request([2 + i, 3, 4], exactly(3), str(i))
    drain(engine)
    assert [list(step.num_scheduled_tokens) for step in engine.trace.steps] == [["0", "1"], ["2", "3"]] * 3
    assert [step.step for step in engine.trace.steps] == list(range(6))
    assert [step.finished for step in engine.trace.steps[-2:]] == [["0", "1"], ["2", "3"]]


def test_what_is_said_does_not_depend_on_how_many_are_in_flight():
    answers = []
    for num_batches in (1, 2, 3, 5):
        engine = flying(num_batches, num_blocks=12, max_num_batched_tokens=7)
        for i in range(6):
            engine.add_request([2, 3, 4, 5, 2 + i], exactly(9), str(i))
        answers.append(drain(engine))
    assert answers == [answers[0]] * 4


def test_an_id_is_free_at_once_after_an_abort_in_flight_and_its_memory_when_that_has_landed():
    engine = flying(2, num_blocks=6)
    engine.add_request([2, 3, 4, 5, 6], exactly(9), "a")
    assert engine.step() == []
    engine.abort("a")
    assert (engine.has_unfinished_requests(), engine.blocks.num_free_blocks) == (True, 4)
    engine.add_request([7, 8], exactly(4), "a")  # somebody else
    said = drain(engine)
    alone = flying(2)
    alone.add_request([7, 8], exactly(4), "a")
    assert said == drain(alone)
    assert engine.blocks.num_free_blocks == 6
    assert [step.finished for step in engine.trace.steps if step.finished] == [["a"]], "an abort is no end"


def test_whoever_should_give_way_and_is_in_flight_does_so_when_it_has_landed():
    engine = flying(2, num_blocks=4, max_num_seqs=2)
    for name in ("a", "b"):
        engine.add_request([2, 3, 4, 5, 6, 7, 8], exactly(6), name)  # two blocks each, and three in the end
    engine.step()  # a is in flight
    while not any(step.preempted for step in engine.trace.steps):
        crowd = [seq for seq in engine.scheduler.running if seq.in_flight]
        engine.step()
        engine.check_integrity()
        assert all(seq in engine.scheduler.running for seq in crowd if not seq.finished and seq.in_flight)
    assert [name for step in engine.trace.steps for name in step.preempted] == ["b"]
    said = drain(engine)
    assert said["a"] == said["b"]


def test_a_wait_that_is_interrupted_loses_nothing():
    engine = flying(2)
    for i in range(2):
        engine.add_request([2 + i, 3, 4], exactly(4), str(i))
    engine.step()
    promise = engine.in_flight[0].result
    patience = promise.result

    def interrupted(timeout=None):
        promise.result = patience
        raise KeyboardInterrupt

    promise.result = interrupted
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    assert len(engine.in_flight) == 2
    engine.check_integrity()
    undisturbed = flying(2)
    for i in range(2):
        undisturbed.add_request([2 + i, 3, 4], exactly(4), str(i))
    assert drain(engine) == drain(undisturbed)


@contextmanager
def ctrl_c_at(number, *methods):
    """Raise KeyboardInterrupt where line `number`, in the order of execution, of these methods would begin."""
    codes, seen = {method.__code__ for method in methods}, []

    def local(frame, event, argument):
        if event == "line":
            seen.append(frame.f_lineno)
            if len(seen) == number:
                raise KeyboardInterrupt
        return local

    before = sys.gettrace()
    sys.settrace(lambda frame, event, argument: local if frame.f_code in codes else None)
    try:
        yield
    finally:
        sys.settrace(before)


def test_ctrl_c_at_any_line_of_a_launch_or_a_landing_leaves_nobody_in_flight_for_ever():
    """As the driver does, everybody is aborted; whoever comes next hears what they would have heard."""
    alone = flying(2)
    alone.add_request([7, 8, 9], exactly(4), "next")
    expected, number, was_interrupted = drain(alone), 0, True
    while was_interrupted:
        number, was_interrupted, engine = number + 1, False, flying(2, num_blocks=16)
        for i in range(3):
            engine.add_request([2 + i] * 9, exactly(6), str(i))
        engine.step()
        try:
            with ctrl_c_at(number, Engine.launch, Engine.land, Engine.pin, Engine.wait_for):
                engine.step()
        except KeyboardInterrupt:
            was_interrupted = True
        for i in range(3):
            engine.abort(str(i))
        drain(engine)
        engine.add_request([7, 8, 9], exactly(4), "next")
        assert drain(engine) == expected, number
        assert engine.blocks.num_free_blocks == 16, number
    assert number > 20


def test_when_a_batch_fails_nobody_is_in_flight_any_more():
    engine = flying(3)
    for i in range(3):
        engine.add_request([2 + i, 3, 4], exactly(4), str(i))
    engine.step()
    engine.step()
    engine.in_flight[0].result.set_exception(RuntimeError("rank 1 died"))
    with pytest.raises(RuntimeError, match="rank 1 died"):
        engine.step()
    engine.check_integrity()
    assert not engine.in_flight
    for i in range(3):
        engine.abort(str(i))
    engine.check_integrity()
    assert not engine.has_unfinished_requests()
    assert engine.blocks.num_free_blocks == engine.config.num_blocks


def test_a_launch_that_fails_while_another_batch_is_under_way_costs_nobody_a_word():
    engine, undisturbed = flying(2), flying(2)
    for i in range(3):
        for each in (engine, undisturbed):
            each.add_request([2 + i] * 9, exactly(6), str(i))
    engine.step()
    execute = engine.executor.execute

    def fail(batch, guesses):
        engine.executor.execute = execute
        raise RuntimeError("no memory")

    engine.executor.execute = fail
    with pytest.raises(RuntimeError, match="no memory"):
        engine.step()
    assert len(engine.in_flight) == 1
    assert not engine.blocks.is_sound(engine.scheduler.ready()), "blocks were named that nobody will fill"
    assert drain(engine) == drain(undisturbed)
    assert engine.blocks.num_free_blocks == engine.config.num_blocks


def test_with_one_stage_a_step_launches_and_lands():
    engine = Engine(EngineConfig(num_blocks=16, block_size=4, max_model_len=32), FakeModel())
    engine.add_request([2, 3], exactly(2), "a")
    assert [len(engine.step()) for _ in range(2)] == [1, 1]
    assert load(6).Engine is Engine


@pytest.mark.parametrize("field", ["data_parallel_size", "num_redundant_experts"])
def test_what_comes_with_level_07_is_refused_by_name(field):
    fields = {"data_parallel_size": {"data_parallel_size": 2}}.get(
        field, {"enable_expert_parallel": True, "num_redundant_experts": 2}
    )
    with pytest.raises(ValueError, match=r"^\w+ comes with level 07, this is level 06$"):
        Engine(EngineConfig(num_blocks=16, max_model_len=32, **fields), FakeModel())


def test_whoever_cannot_be_composed_leaves_no_executor_behind(monkeypatch):
    executor, ends = UniprocExecutor(EngineConfig(num_blocks=16, max_model_len=32), FakeModel()), []
    monkeypatch.setattr(executor, "shutdown", lambda: ends.append(1))
    monkeypatch.setattr("minipaged.engine.make_drafter", lambda config, target: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        Engine(executor.config, executor=executor)
    assert ends == [1]


def test_a_batch_that_cannot_be_run_fails_where_it_is_awaited():
    engine = Engine(EngineConfig(num_blocks=16, block_size=4, max_model_len=32), FakeModel())
    engine.executor.worker.run = lambda batch, guesses: 1 // 0
    result = engine.executor.execute(None, [])
    with pytest.raises(ZeroDivisionError):
        result.result()
