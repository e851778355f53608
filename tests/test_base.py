"""The verbs, one by one: memory and queues after each, and what an integrity check says of a damaged engine."""

import pytest

from levels import load
from minipaged.base import SchedulerBase
from minipaged.batch import Plan
from minipaged.blocks import BlockManager
from minipaged.config import EngineConfig
from minipaged.sampling_params import SamplingParams
from minipaged.sequence import Sequence

from .fake_model import FakeModel

CONFIG = EngineConfig(num_blocks=6, block_size=2, max_model_len=20, max_num_seqs=3, scheduling_policy="priority")


class Idle(SchedulerBase):
    """A scheduler without a policy of its own."""

    def schedule(self) -> Plan:
        return self.begin()


def scheduler_with(*lengths, priorities=(0, 0, 0)):
    """A sequence of each length is running, all its tokens but the last computed."""
    scheduler = Idle(CONFIG, BlockManager(CONFIG.num_blocks, CONFIG.block_size))
    for arrival, length in enumerate(lengths):
        seq = Sequence(str(arrival), [7] * length, SamplingParams(), 20, arrival=arrival, priority=priorities[arrival])
        assert scheduler.blocks.reserve(seq, length - 1)
        seq.num_computed_tokens = length - 1
        scheduler.running.push(seq)
    return scheduler


def names(seqs):
    return [seq.request_id for seq in seqs]


def test_admission_takes_the_head_to_its_place_among_those_who_run():
    scheduler = scheduler_with(3, 3, priorities=(2, 4))
    newcomer = Sequence("new", [7], SamplingParams(), 20, arrival=9, priority=3)
    scheduler.waiting.push(newcomer)
    assert scheduler.admit() is newcomer
    assert (names(scheduler.waiting), names(scheduler.running)) == ([], ["0", "new", "1"])
    assert scheduler.trace.now.admitted == ["new"]


def test_without_a_seat_nobody_is_next():
    scheduler = scheduler_with(2, 2, 2)
    scheduler.waiting.push(Sequence("new", [7], SamplingParams(), 20, arrival=9))
    assert scheduler.head() is None
    scheduler.running.pop()
    assert scheduler.head().request_id == "new"


def test_preemption_keeps_tokens_and_gives_memory_back():
    scheduler = scheduler_with(5, 4)
    seq = scheduler.preempt()
    assert (seq.request_id, seq.tokens, seq.num_computed_tokens, seq.block_table) == ("1", [7] * 4, 0, [])
    assert (scheduler.blocks.num_free_blocks, seq.num_preemptions) == (4, 1)
    assert (names(scheduler.waiting), scheduler.trace.now.preempted) == (["1"], ["1"])


def test_room_is_made_by_as_many_as_it_takes_and_no_more():
    scheduler, plan = scheduler_with(5, 5, 5), Plan()
    first, second, _ = scheduler.running
    assert scheduler.make_room(first, plan)
    assert (names(scheduler.running), plan.crowded) == (["0", "1"], True)
    assert scheduler.make_room(second, plan), "the last to give way left two blocks, and one is left"
    assert scheduler.blocks.num_free_blocks == 0


def test_whoever_is_last_gives_way_itself():
    scheduler, plan = scheduler_with(9, 5), Plan()
    assert not scheduler.make_room(scheduler.running[1], plan)
    assert (names(scheduler.running), names(scheduler.waiting)) == (["0"], ["1"])


def test_the_finished_are_retired_with_their_blocks():
    scheduler = scheduler_with(5, 4, 2)
    scheduler.running[1].finish_reason = "stop"
    assert names(scheduler.retire()) == ["1"]
    assert (names(scheduler.running), scheduler.blocks.num_free_blocks) == (["0", "2"], 3)


@pytest.mark.parametrize("is_running", [True, False])
def test_an_abort_leaves_nothing_behind_whether_it_runs_or_waits(is_running):
    scheduler = scheduler_with(5, 4)
    seq = scheduler.running[1] if is_running else scheduler.preempt()
    scheduler.abort(seq)
    assert (names(scheduler.waiting), names(scheduler.running)) == ([], ["0"])
    assert (seq.finish_reason, scheduler.blocks.num_free_blocks) == ("abort", 4)


def busy_engine():
    engine = load(3).Engine(CONFIG, FakeModel())
    for name, num_tokens, n in [("a", 4, 1), ("b", 4, 1), ("c", 6, 2)]:
        engine.add_request([7] * num_tokens, SamplingParams(ignore_eos=True, max_tokens=9, n=n), name)
    engine.step()
    return engine


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda engine: engine.desk.live.pop("c"), "a live sequence waits or runs"),
        (lambda engine: engine.desk.live["a"].pop(), "a live sequence waits or runs"),
        (lambda engine: engine.desk.live.update(d=[]), "a live request has a live choice"),
        (lambda engine: engine.scheduler.waiting.append(engine.scheduler.running[0]), "nobody waits and runs"),
        (lambda engine: engine.scheduler.running.reverse(), "queues are sorted by the policy's key"),
        (lambda engine: engine.blocks.pool.free_block_queue.popleft(), "free [+] held = pool"),
        (lambda engine: engine.scheduler.running.pop(), "every reference is somebody's"),
        (lambda engine: engine.scheduler.waiting[0].block_table.append(0), "whoever waits holds no block"),
    ],
)
def test_damage_to_an_engine_is_named_by_its_integrity_check(damage, sentence):
    engine = busy_engine()
    engine.check_integrity()
    damage(engine)
    with pytest.raises(AssertionError, match=sentence):
        engine.check_integrity()


def test_an_engine_tells_only_those_who_have_news():
    engine = load(3).Engine(EngineConfig(num_blocks=9, max_model_len=40, max_num_batched_tokens=8), FakeModel())
    assert engine.add_request([7] * 7, SamplingParams(max_tokens=5, ignore_eos=True)) == "0"
    assert engine.add_request([7] * 9, SamplingParams(max_tokens=5, ignore_eos=True)) == "1"
    assert [[output.request_id for output in engine.step()] for _ in range(3)] == [["0"], ["0"], ["0", "1"]]


def test_with_nothing_to_do_nothing_happens():
    engine = load(3).Engine(CONFIG, FakeModel())
    assert engine.step() == []
    assert (engine.has_unfinished_requests(), engine.trace.steps) == (False, [])
