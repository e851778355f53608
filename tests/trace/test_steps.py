"""Slots are counted while they are held, people at the end of the step, and waste is the mean over steps."""

import json

import pytest

from levels import load
from minipaged.batch import Chunk
from minipaged.config import EngineConfig
from minipaged.sampling_params import SamplingParams
from minipaged.sequence import Sequence
from minipaged.trace import Occupancy, StepTrace, kv_usage

from ..fake_model import FakeModel

KEYS = {
    "step",
    "t_s",
    "num_scheduled_tokens",
    "draft_tokens",
    "accepted_tokens",
    "admitted",
    "preempted",
    "finished",
    "cached_tokens",
    "num_waiting",
    "num_running",
    "num_free_blocks",
    "num_blocks",
    "replica",
}


def sequence(name, num_computed, num_blocks):
    seq = Sequence(name, [7] * 9, SamplingParams(), 20)
    seq.num_computed_tokens, seq.block_table = num_computed, list(range(num_blocks))
    return seq


def run(level, *requests, **fields):
    """The trace of an engine that served (prompt length, max_tokens) requests."""
    fields = {"num_blocks": 16, "block_size": 4, "max_model_len": 32, **fields}
    engine = load(level).Engine(EngineConfig(**fields), FakeModel())
    for i, (n, max_tokens) in enumerate(requests):
        engine.add_request([7] * n, SamplingParams(max_tokens=max_tokens, ignore_eos=True), str(i))
    while engine.has_unfinished_requests():
        engine.step()
    return engine.trace


def test_a_step_is_written_down_once_it_is_over():
    trace = StepTrace(block_size=4)
    first, second = sequence("a", 5, 2), sequence("b", 4, 1)
    trace.begin()
    trace.admitted(second)
    trace.preempted(first)
    trace.record([Chunk(second, 4)], [[8]], [first, second], num_held_blocks=3)
    assert trace.steps == []
    trace.finish([second], Occupancy(num_waiting=1, num_running=0, num_free_blocks=7, num_blocks=8))
    (step,) = trace.steps
    assert (step.admitted, step.preempted, step.finished) == (["b"], ["a"], ["b"])
    assert (step.num_scheduled_tokens, step.reserved_slots, step.used_slots) == ({"b": 4}, 12, 9)
    assert (step.num_waiting, step.num_running, step.num_free_blocks, step.num_blocks) == (1, 0, 7, 8)
    trace.begin()
    assert (trace.now.step, trace.now.preempted) == (1, [])


def test_the_choices_of_a_request_are_counted_together_and_each_move_is_listed():
    trace = StepTrace(block_size=4)
    choices, other = [sequence("a", n, 2) for n in (0, 4, 4)], sequence("b", 4, 1)
    trace.begin()
    for seq in [*choices, other]:
        trace.admitted(seq)
    trace.preempted(choices[2])
    chunks = [Chunk(choices[0], 9, (7, 7)), Chunk(other, 1), Chunk(choices[1], 5, (7,))]
    trace.record(chunks, [[7], [8], [7, 9]], [*choices[:2], other], 5)
    trace.finish(choices[:2], Occupancy(1, 1, 3, 8))
    (step,) = trace.steps
    assert (step.admitted, step.preempted, step.finished) == (["a", "a", "a", "b"], ["a"], ["a", "a"])
    assert (step.num_scheduled_tokens, step.cached_tokens) == ({"a": 17, "b": 1}, {"a": 8, "b": 4})
    assert (step.draft_tokens, step.accepted_tokens, step.accepted_runs) == ({"a": 3}, {"a": 1}, [0, 1])
    assert step.longest_draft == 2


def test_a_step_that_was_interrupted_leaves_nothing_to_the_next():
    trace = StepTrace(block_size=4)
    trace.begin()
    trace.admitted(sequence("a", 0, 1))
    trace.begin()
    assert (trace.now.step, trace.now.admitted) == (0, [])


def test_the_clock_starts_with_the_first_step(monkeypatch):
    moments = iter([50.0, 50.5, 52.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(moments))
    trace = StepTrace(block_size=4)
    for _ in range(3):
        trace.begin()
        trace.finish([], Occupancy(0, 0, 8, 8))
    assert [step.t_s for step in trace.steps] == [0.0, 0.5, 2.0]


def test_the_document_has_the_published_keys_and_is_json():
    document = run(3, (5, 3), (6, 2)).document()
    assert set(document) == {"steps"}
    assert all(set(step) == KEYS for step in document["steps"])
    assert json.loads(json.dumps(document)) == document
    assert [step["step"] for step in document["steps"]] == list(range(len(document["steps"])))


def test_before_anything_held_memory_there_is_no_waste_to_speak_of():
    assert kv_usage([]) == {"reserved_slots_mean": None, "used_slots_mean": None, "waste": None}


def test_waste_is_the_mean_over_the_steps_that_held_memory():
    trace = StepTrace(block_size=4)
    for num_computed, num_blocks in [(4, 1), (5, 2), (0, 0)]:
        trace.begin()
        trace.record([], [], [sequence("a", num_computed, num_blocks)], num_held_blocks=num_blocks)
        trace.finish([], Occupancy(0, 1, 0, 8))
    assert kv_usage(trace.steps) == {"reserved_slots_mean": 6.0, "used_slots_mean": 4.5, "waste": pytest.approx(3 / 16)}


def test_a_row_wastes_what_its_sequence_never_becomes():
    trace = run(1, (5, 3))
    assert [(step.reserved_slots, step.used_slots) for step in trace.steps] == [(32, 5), (32, 6), (32, 7)]
    assert kv_usage(trace.steps)["waste"] == pytest.approx(1 - 6 / 32)


@pytest.mark.parametrize("level", [2, 3])
def test_blocks_waste_less_than_one_block_a_sequence(level):
    trace = run(level, (5, 9), (6, 2), (11, 7))
    for step in trace.steps:
        assert 0 <= step.reserved_slots - step.used_slots <= 3 * len(step.num_scheduled_tokens)


def test_a_prompt_in_chunks_wastes_its_blocks_until_they_are_filled():
    trace = run(3, (8, 2), max_num_batched_tokens=3)
    assert [(step.reserved_slots, step.used_slots) for step in trace.steps] == [(8, 3), (8, 6), (8, 8), (12, 9)]


def test_people_are_counted_at_the_end_of_a_step_and_the_finished_gave_their_blocks_back():
    first, *_, last = run(3, (4, 2), (4, 1), (4, 1), max_num_seqs=2).steps
    assert (first.admitted, first.finished) == (["0", "1"], ["1"])
    assert (first.num_waiting, first.num_running, first.num_free_blocks) == (1, 1, 15)
    assert (last.num_waiting, last.num_running, last.num_free_blocks, last.num_blocks) == (0, 0, 16, 16)


def test_a_second_admission_is_an_admission_too():
    trace = run(3, (7, 9), (7, 9), num_blocks=5)
    assert [name for step in trace.steps for name in step.preempted] == ["1"]
    assert [name for step in trace.steps for name in step.admitted] == ["0", "1", "1"]
    assert all(set(step.cached_tokens) == set(step.admitted) for step in trace.steps)
