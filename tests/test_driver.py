"""A run ends with an output for everybody and nothing left in the engine, however it ends."""

import time
from typing import Any

import pytest

from levels import load
from minipaged.config import EngineConfig
from minipaged.driver import Request, Run
from minipaged.outputs import RequestOutput
from minipaged.sampling_params import SamplingParams

from .fake_model import FakeModel

LEVELS = (1, 2, 3)
CONFIG = {"block_size": 4, "num_blocks": 16, "max_model_len": 32}


def engine(level: int, model: FakeModel | None = None, **config: Any) -> Any:
    return load(level).Engine(EngineConfig(**{**CONFIG, **config}), model or FakeModel())


def ask(num_tokens: int, m: int, *, n: int = 1, **options: Any) -> Request:
    params = SamplingParams(n=n, temperature=0, max_tokens=m, ignore_eos=True)
    return Request([2 + i % 9 for i in range(num_tokens)], params, **options)


def reasons(run: Run) -> list[Any]:
    return [record.output.outputs[0].finish_reason for record in run.records if record.output]


def interrupt_at(num_steps: int) -> Any:
    def on_step(run: Run, outputs: list[RequestOutput]) -> None:
        if run.num_steps == num_steps:
            raise KeyboardInterrupt

    return on_step


@pytest.mark.parametrize("level", LEVELS)
def test_records_are_in_the_order_given_and_complete(level: int) -> None:
    run = Run(engine(level), [ask(3, 9), ask(5, 2), ask(2, 4)], numbered=True).go()
    assert [record.request_id for record in run.records] == ["0", "1", "2"]
    assert reasons(run) == ["length"] * 3
    for record, num_tokens in zip(run.records, [9, 2, 4], strict=True):
        assert record.output is not None
        assert len(record.output.outputs[0].token_ids) == len(record.token_times) == num_tokens
        assert record.token_times == sorted(record.token_times)
        assert record.token_times[-1] <= record.end_s <= run.wall_s


@pytest.mark.parametrize("level", LEVELS)
def test_every_choice_of_a_request_has_its_times(level: int) -> None:
    [record, _] = Run(engine(level, max_num_seqs=2), [ask(3, 4, n=3), ask(2, 2)], numbered=True).go().records
    assert record.output is not None
    assert [said.index for said in record.output.outputs] == [0, 1, 2]
    assert [len(times) for times in record.choice_times] == [4, 4, 4]
    assert record.num_tokens == len(record.token_times) == 12
    assert record.token_times == sorted(record.token_times)
    assert record.choice_times[0][0] == record.token_times[0] < record.choice_times[2][0], "two seats: the third waits"
    assert record.token_times[-1] <= record.end_s


@pytest.mark.parametrize("level", LEVELS)
def test_on_step_is_called_once_a_step(level: int) -> None:
    seen: list[int] = []
    run = Run(engine(level), [ask(3, 4)]).go(lambda run, outputs: seen.append(run.num_steps))
    assert seen == list(range(1, run.num_steps + 1))
    assert run.num_steps == len(run.engine.trace.steps)


@pytest.mark.parametrize("level", LEVELS)
def test_an_interrupt_between_steps_keeps_what_is_there(level: int) -> None:
    asked = engine(level, max_num_seqs=2)
    run = Run(asked, [ask(3, 2), ask(3, 9), ask(3, 9)], numbered=True).go(interrupt_at(3))
    assert run.interrupted
    assert reasons(run) == ["length", "abort", "abort"]
    numbers = [len(record.output.outputs[0].token_ids) for record in run.records if record.output]
    assert numbers[:2] == [2, 3]
    assert [record.end_s is None for record in run.records] == [False, True, True]
    assert not asked.has_unfinished_requests()
    asked.check_integrity()


@pytest.mark.parametrize("level", LEVELS)
def test_an_interrupt_inside_the_model_leaves_nothing_behind(level: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, forward = engine(level), FakeModel.__call__

    def interrupted(model: FakeModel, *args: Any) -> Any:
        if model.num_forwards == 2:
            model.num_forwards += 1
            raise KeyboardInterrupt
        return forward(model, *args)

    monkeypatch.setattr(FakeModel, "__call__", interrupted)
    run = Run(asked, [ask(3, 9), ask(3, 9)], numbered=True).go()
    assert run.interrupted
    assert reasons(run) == ["abort", "abort"]
    assert not asked.has_unfinished_requests()
    asked.check_integrity()
    again = Run(asked, [ask(3, 2)], numbered=True).go()  # the same ids and the same memory serve the next run
    assert reasons(again) == ["length"]
    assert again.engine.trace.steps[-2].admitted == ["0"]


@pytest.mark.parametrize("level", LEVELS)
def test_a_step_that_raises_leaves_nothing_behind(level: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = engine(level)

    def broken(*args: Any) -> Any:
        raise RuntimeError("no power")

    with monkeypatch.context() as patch:
        patch.setattr(FakeModel, "__call__", broken)
        run = Run(asked, [ask(3, 9)])
        with pytest.raises(RuntimeError, match="no power"):
            run.go()
    assert asked.desk.live == {}
    assert reasons(Run(asked, [ask(3, 2)]).go()) == ["length"]


def test_a_request_that_never_began_ends_with_abort() -> None:
    run = Run(engine(3), [ask(3, 9), ask(3, 9, arrival_s=1e300)], numbered=True).go(interrupt_at(1))
    assert reasons(run) == ["abort", "abort"]
    assert [len(record.token_times) for record in run.records] == [1, 0]


@pytest.mark.parametrize("level", LEVELS)
def test_after_an_interrupt_every_choice_has_an_end(level: int) -> None:
    asked = engine(level, max_num_seqs=2)
    run = Run(asked, [ask(3, 3, n=3), ask(3, 3, n=2)], numbered=True).go(interrupt_at(4))
    ends = [[(said.index, said.finish_reason) for said in r.output.outputs] for r in run.records if r.output]
    assert ends == [[(0, "length"), (1, "length"), (2, "abort")], [(0, "abort"), (1, "abort")]]
    assert not asked.has_unfinished_requests()
    asked.check_integrity()


def test_a_request_that_somebody_aborts_is_reported_so() -> None:
    def on_step(run: Run, outputs: list[RequestOutput]) -> None:
        run.engine.abort("1")

    run = Run(engine(3), [ask(3, 3), ask(3, 9)], numbered=True).go(on_step)
    assert not run.interrupted
    assert reasons(run) == ["length", "abort"]


def test_an_interrupt_while_waiting_for_an_arrival_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    naps = []

    def sleep(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", sleep)
    run = Run(engine(3), [ask(3, 2, arrival_s=1e300)]).go()
    assert naps == [60.0] * 3  # in naps, as no clock can count so far
    assert run.interrupted
    assert run.num_steps == 0


def test_requests_are_added_when_their_time_has_come() -> None:
    run = Run(engine(3), [ask(3, 2, arrival_s=0.05), ask(3, 2), ask(3, 2, arrival_s=0.05)], numbered=True).go()
    order = [name for step in run.engine.trace.steps for name in step.admitted]
    assert order == ["1", "0", "2"]  # by arrival, then as given
    for record in run.records:
        assert record.token_times[0] >= record.request.arrival_s
    assert run.wall_s >= 0.05


def test_an_urgent_request_is_served_first() -> None:
    asked = engine(3, max_num_seqs=1, scheduling_policy="priority")
    run = Run(asked, [ask(3, 2, priority=1), ask(3, 2, priority=0)], numbered=True).go()
    assert [name for step in run.engine.trace.steps for name in step.admitted] == ["1", "0"]


def test_a_request_whose_logits_are_nan_ends_alone() -> None:
    wanted = [ask(3, 5), Request([2, 15], SamplingParams(max_tokens=5)), ask(4, 5)]
    run = Run(engine(3, FakeModel(unlucky=frozenset({15}))), wanted, numbered=True).go()
    assert reasons(run) == ["length", "error", "length"]


def test_others_on_the_same_engine_are_served_and_not_recorded() -> None:
    asked = engine(3)
    other = asked.add_request([2, 3], SamplingParams(temperature=0, max_tokens=2, ignore_eos=True))
    run = Run(asked, [ask(3, 2)]).go()
    assert [record.request_id for record in run.records] != [other]
    assert reasons(run) == ["length"]
    assert not asked.has_unfinished_requests()


def test_an_interrupt_leaves_others_running() -> None:
    asked = engine(3)
    asked.add_request([2, 3], SamplingParams(temperature=0, max_tokens=9, ignore_eos=True), "other")
    Run(asked, [ask(3, 9)]).go(interrupt_at(2))
    assert list(asked.desk.live) == ["other"]
    assert asked.has_unfinished_requests()
    asked.check_integrity()
