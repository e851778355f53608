"""Outputs are put together from whatever has come, of whoever is still live, and a refusal leaves no trace."""

import pytest

from minipaged.config import EngineConfig
from minipaged.core import questions
from minipaged.core.loop import EngineCore
from minipaged.core.messages import Answer, Died, Turn, encode
from minipaged.core.pace import CommonPace, OwnPace
from minipaged.core.replicas import EngineDeadError, Replicas
from minipaged.core.wire import LocalWire, Lost
from minipaged.engine import Engine
from minipaged.parallel.executor import UniprocExecutor
from minipaged.sampling_params import SamplingParams

from ..fake_model import FakeModel
from ..flights import let_fly
from .echo import CONFIG, EchoEngine, vocabulary


def new_replicas(num_replicas=1, pace=OwnPace, **fields):
    config = EngineConfig(**CONFIG, data_parallel_size=num_replicas, **fields)
    cores = [EngineCore(EchoEngine(config), pace()) for _ in range(num_replicas)]
    return Replicas(LocalWire(cores), vocabulary()), cores


SHARED = {"data_parallel_size": 2, "enable_expert_parallel": True}


def greedy(max_tokens=3, **options):
    return SamplingParams(temperature=0, max_tokens=max_tokens, **options)


def run(replicas):
    told = []
    while replicas.entries:
        told += replicas.poll()
    return told


def test_several_reports_at_once_are_one_output():
    replicas, [core] = new_replicas()
    replicas.add([5], greedy(4), "a")
    replicas.wire.said += [(0, core.turn()) for _ in range(2)]
    [told] = replicas.poll(0)
    assert told.output.outputs[0].token_ids == [6, 7]
    assert [step.output.outputs[0].token_ids for step in run(replicas)] == [[6, 7, 8], [6, 7, 8, 9]]


def test_news_of_whoever_has_left_reach_nobody_even_under_the_same_name():
    replicas, [core] = new_replicas()
    replicas.add([5], greedy(9), "a")
    late = core.turn()
    [told] = replicas.abort("a")
    assert told.output.outputs[0].finish_reason == "abort"
    replicas.add([9], greedy(2), "a")
    replicas.wire.said.append((0, late))
    assert replicas.poll(0) == []
    assert run(replicas)[-1].output.outputs[0].token_ids == [10, 11]


@pytest.mark.parametrize(("salt", "top_k"), [("\ud800", 0), (None, 2**64)])
def test_what_cannot_cross_the_border_leaves_no_trace(salt, top_k):
    replicas, _ = new_replicas()
    replicas.wire.send = lambda replica, command: encode(command)
    with pytest.raises(ValueError):
        replicas.add([5], greedy(top_k=top_k), "a", cache_salt=salt)
    assert (replicas.entries, replicas.tickets, replicas.desk.live) == ({}, {}, {})
    assert replicas.all[0].load == 0


def test_where_experts_are_shared_all_run_or_none_does():
    """Only one has work, then only the other: whoever has none runs a dummy, and afterwards all sleep."""
    replicas, cores = new_replicas(2, CommonPace, enable_expert_parallel=True)
    for name, index in (("a", 0), ("b", 1)):
        replicas.all[1 - index].num_sent = 99  # of equals the one that was sent the fewest
        replicas.add([5 + index], greedy(3), name)
        assert replicas.entries[replicas.tickets[name]].replica is replicas.all[index]
        replicas.all[1 - index].num_sent = 0
        assert run(replicas)[-1].output.finished
        batches = [core.engine.num_batches for core in cores]
        assert batches[0] == batches[1] > 0
        assert not any(core.is_due for core in cores)
    assert [core.engine.num_dummies for core in cores] == [3, 3]


def test_where_experts_are_shared_the_end_of_one_is_the_end_of_all():
    replicas, _ = new_replicas(2, CommonPace, enable_expert_parallel=True)
    for name in ("a", "b"):
        replicas.add([5], greedy(9), name)
    replicas.wire.said.append((1, Died("RuntimeError: no power")))
    told = replicas.poll(0)
    assert {output.error for _, output in told} == {"replica 1 died: RuntimeError: no power"}
    assert len(told) == 2
    with pytest.raises(EngineDeadError, match="replica 1 died: RuntimeError: no power"):
        replicas.add([5], greedy())


def test_a_turn_is_nothing_to_who_keeps_its_own_pace():
    core = EngineCore(EchoEngine(EngineConfig(**CONFIG)), OwnPace())
    assert core.take(Turn()) == []
    assert not core.is_due


def test_who_asked_may_leave_before_the_answer():
    replicas, _ = new_replicas()
    replicas.add([5], greedy(2), "a")
    [question] = replicas.ask("look")
    assert not question.cancel()
    replicas.add([6], greedy(2), "b")
    told = run(replicas)
    assert {one.output.request_id for one in told if one.output.finished} == {"a", "b"}
    assert question.result().view is not None


def test_a_lost_message_breaks_the_questions_whose_answer_it_may_have_been():
    replicas, _ = new_replicas(2)
    broken, answered = replicas.ask("look")
    replicas.wire.said.popleft()
    replicas.wire.said.append((0, Lost("3 bytes from the engine cannot be read")))
    replicas.wire.said.append((0, Answer(0)))  # if it was something else that was lost: too late
    replicas.poll(0)
    assert str(broken.exception()) == "3 bytes from the engine cannot be read"
    assert answered.result().view is not None


def test_nobody_waits_for_an_answer_for_ever(monkeypatch):
    monkeypatch.setattr(questions, "ANSWER_S", 0.0)
    replicas, _ = new_replicas()
    [question] = replicas.ask("check")
    replicas.wire.said.clear()
    replicas.poll(0)
    assert str(question.exception()) == "a replica did not answer within 0 s"


@pytest.mark.parametrize("who_has_work", [0, 1])
def test_a_lost_report_of_a_turn_stops_nobody_who_shares_experts(who_has_work):
    """It may have told that the turn was over, or that the request was."""
    replicas, cores = new_replicas(2, CommonPace, enable_expert_parallel=True)
    replicas.all[1 - who_has_work].num_sent = 99
    replicas.add([5], greedy(2), "a")
    cores[0].turn()  # and nobody hears of it
    replicas.wire.said.append((0, Lost("it cannot be read")))
    assert run(replicas)[-1].output.error == (None if who_has_work else "it cannot be read")
    replicas.add([6], greedy(2), "b")
    assert run(replicas)[-1].output.outputs[0].token_ids == [7, 8]


def test_where_experts_are_shared_whoever_leaves_in_flight_gives_its_blocks_back():
    config = EngineConfig(num_blocks=16, block_size=4, max_model_len=64, **SHARED)
    executors = [UniprocExecutor(config, FakeModel()) for _ in range(2)]
    engines = [let_fly(Engine(config, executor=executor), 2) for executor in executors]
    cores = [EngineCore(engine, CommonPace()) for engine in engines]
    replicas = Replicas(LocalWire(cores), engines[0].desk.vocabulary)
    replicas.add([5, 6, 7, 8, 9], greedy(20), "a")
    replicas.poll()
    assert engines[0].in_flight
    replicas.abort("a")
    while replicas.conductor.is_wanted(replicas) or not replicas.conductor.is_at_rest(replicas):
        replicas.poll()
    assert [engine.blocks.num_free_blocks for engine in engines] == [16, 16]
    assert not any(core.is_due for core in cores)


def test_of_unequal_pools_the_smallest_says_what_may_come_in():
    cores = [EngineCore(EchoEngine(EngineConfig(**{**CONFIG, "num_blocks": n})), OwnPace()) for n in (9, 2, 5)]
    replicas = Replicas(LocalWire(cores), vocabulary())
    assert (replicas.config.num_blocks, replicas.occupancy.num_free_blocks) == (2, 16)
    with pytest.raises(ValueError, match="needs 3 blocks of 4; the whole pool has 2"):
        replicas.add([5] * 9, greedy(1))
