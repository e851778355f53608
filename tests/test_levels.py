"""The slow one is the judge: every level, however configured, says what level 01 says; and each shows its own gain."""

from random import Random

import pytest

from levels import NAMES, load
from minipaged.config import EngineConfig
from minipaged.sampling_params import SamplingParams
from minipaged.trace import kv_usage

from .fake_model import FakeModel
from .worlds import Visit, new_model, random_work

LONG_AND_SHORT = [(9, 40)] + [(5 + i, 4) for i in range(9)]  # prompt, answer: one is long, nine are short


def hear(engine, visits):
    """Everybody at once, to the end: all outputs, in the order of coming."""
    for i, visit in enumerate(visits):
        engine.add_request(visit.prompt, visit.params, str(i), visit.priority)
    outputs = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    return outputs


def ends(outputs):
    """What each choice of each request said, and why it stopped."""
    last = {output.request_id: output for output in outputs}
    assert all(output.finished for output in last.values())
    return [
        ([(said.token_ids, said.finish_reason, said.stop_reason) for said in last[name].outputs], last[name].error)
        for name in sorted(last, key=int)
    ]


def serve(engine, visits):
    return ends(hear(engine, visits))


@pytest.mark.parametrize("level", range(2, len(NAMES) + 1))
def test_every_level_says_what_level_01_says(level):
    num_preemptions = num_silent = 0
    for seed in range(120):
        config, visits = random_work(Random(seed), level)
        rows = EngineConfig(num_blocks=3, block_size=config.max_model_len, max_model_len=config.max_model_len)
        engine = load(level).Engine(config, new_model())
        outputs = hear(engine, visits)
        assert ends(outputs) == serve(load(1).Engine(rows, new_model()), visits), (seed, config, visits)
        num_preemptions += sum(len(step.preempted) for step in engine.trace.steps)
        num_silent += sum(len(step.num_scheduled_tokens) for step in engine.trace.steps) - len(outputs)
    assert num_preemptions > 20, "or the worlds are too wide to prove anything"
    assert level < 3 or num_silent > 200, "chunks that say nothing yet"


@pytest.mark.parametrize("level", range(1, len(NAMES) + 1))
def test_the_order_in_which_requests_come_changes_nobodys_answer(level):
    for seed in range(20):
        config, visits = random_work(Random(seed), level)
        forward = serve(load(level).Engine(config, new_model()), visits)
        backward = serve(load(level).Engine(config, new_model()), visits[::-1])
        assert forward == backward[::-1]


def lesson(level, **fields):
    """The steps of one long request and nine short ones in the same memory."""
    config = EngineConfig(num_blocks=64, block_size=4, max_model_len=64, **fields)
    engine = load(level).Engine(config, FakeModel())
    serve(engine, [Visit([2 + i] * n, greedy(max_tokens)) for i, (n, max_tokens) in enumerate(LONG_AND_SHORT)])
    return engine.trace.steps


def greedy(max_tokens):
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)


def test_02_wastes_a_fraction_of_what_01_does():
    assert kv_usage(lesson(1))["waste"] > 0.6
    assert kv_usage(lesson(2))["waste"] < 0.15


def test_02_holds_more_at_once_in_the_same_memory():
    assert max(len(step.num_scheduled_tokens) for step in lesson(1)) == 4
    assert max(len(step.num_scheduled_tokens) for step in lesson(2)) == 10


def test_03_lets_nobody_wait_for_the_long_one():
    ends = {n: [step.step for step in lesson(n, max_num_seqs=4) if set(step.finished) - {"0"}] for n in (2, 3)}
    assert max(ends[2]) == 40 + 2 * 4 - 1  # the long one's batch, then two batches of short ones
    assert max(ends[3]) == 3 * 4 - 1  # three rounds of three short ones beside the long one


def test_levels_are_found_by_number():
    assert [name[:2] for name in NAMES] == [f"{number:02}" for number in range(1, len(NAMES) + 1)]
    assert load(2).__name__ == "levels.02_paged_attention.engine"


@pytest.mark.parametrize("number", [0, -1, 99])
def test_a_level_that_is_not_there_is_refused_with_those_that_are(number):
    with pytest.raises(ValueError, match=f"level {number} is not among 1 to {len(NAMES)}"):
        load(number)
