"""What a step may do, whoever comes or goes when: every level beside its ledger, in any order of events.

The rules themselves are the sentences of policies.py. Hypothesis looks for the smallest history that breaks one; storms
are many more histories, from seeds. Below them, the faults that engines like this one really had."""

import pytest
from hypothesis import note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from levels import load
from minipaged.config import EngineConfig
from minipaged.sampling_params import SamplingParams

from .fake_model import FakeModel
from .pair import Pair, random_event, storm
from .worlds import random_config

randoms = st.randoms(use_true_random=False)


class EngineMachine(RuleBasedStateMachine):
    """Any order of arrivals, steps and departures; the ledger has the invariants."""

    level = 0

    @initialize(rng=randoms)
    def build(self, rng):
        self.pair = Pair(self.level, config := random_config(rng, self.level))
        note(f"{config}")

    @rule(rng=randoms)
    def something_happens(self, rng):
        note(random_event(self.pair, rng))

    def teardown(self):
        self.pair.drain()


def machine(level):
    case = type(f"Level{level:02}", (EngineMachine,), {"level": level}).TestCase
    case.settings = settings(max_examples=settings.default.max_examples, stateful_step_count=20)
    return case


TestLevel01 = machine(1)
TestLevel02 = machine(2)
TestLevel03 = machine(3)


@pytest.mark.parametrize(("level", "hundred"), [(1, 0), (1, 1), (2, 0), (2, 1), (3, 0), (3, 1), (3, 2), (3, 3)])
def test_no_storm_breaks_a_policy_or_leaves_anybody_behind(level, hundred):
    for seed in range(100 * hundred, 100 * hundred + 100):
        storm(level, seed)


def engine(level, model=None, **fields):
    fields = {"num_blocks": 64, "block_size": 4, "max_model_len": 64, **fields}
    return load(level).Engine(EngineConfig(**fields), model or FakeModel())


def exactly(num_tokens, **fields):
    return SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True, **fields)


def run(engine, *requests):
    """Add (prompt, params) requests as "0", "1", ..., run them to the end: their last outputs, in that order."""
    for i, (prompt, params) in enumerate(requests):
        engine.add_request(prompt, params, str(i))
    last = {}
    while engine.has_unfinished_requests():
        last.update({output.request_id: output for output in engine.step()})
        engine.check_integrity()
    return [last[str(i)].outputs[0] for i in range(len(requests))]


def said(completions):
    return [completion.token_ids for completion in completions]


def ran(engine):
    """What each step scheduled."""
    return [step.num_scheduled_tokens for step in engine.trace.steps]


@pytest.mark.parametrize("num_tokens", [3, 4, 5, 8])
@pytest.mark.parametrize("level", [2, 3])
def test_a_block_comes_neither_a_step_early_nor_a_step_late(level, num_tokens):
    paged, request = engine(level), (list(range(2, 2 + num_tokens)), exactly(6))
    (answer,) = run(paged, request)
    used = [num_tokens + i for i in range(6)]  # the last of the six is never computed
    assert [step.used_slots for step in paged.trace.steps] == used
    assert [step.reserved_slots for step in paged.trace.steps] == [4 * -(-n // 4) for n in used]
    assert [answer] == run(engine(1), request)


def test_whoever_the_budget_leaves_out_owns_nothing():
    paged = engine(3, max_num_batched_tokens=6)
    for name in ("0", "1"):
        paged.add_request([2, 3, 4, 5, 6, 7], exactly(3), name)
    paged.step()
    assert [seq.request_id for seq in paged.holders] == ["0"]
    assert paged.blocks.num_free_blocks == 62


def test_nobody_comes_in_without_running_at_once():
    paged = engine(3, max_num_batched_tokens=8)
    run(paged, *[([2, 3, 4, 5, 6, 7], exactly(3))] * 4)
    for step in paged.trace.steps:
        assert set(step.admitted) <= set(step.num_scheduled_tokens)


@pytest.mark.parametrize(("num_blocks", "block_size", "n"), [(49, 16, 1002), (4, 4, 17)])
@pytest.mark.parametrize("level", [2, 3])
def test_a_prompt_larger_than_the_pool_is_refused_at_once_and_blocks_nobody(level, num_blocks, block_size, n):
    paged = engine(level, num_blocks=num_blocks, block_size=block_size, max_model_len=2048)
    needed = -(-n // block_size)
    with pytest.raises(ValueError, match=f"{n} tokens needs {needed} blocks of {block_size}.* has {num_blocks}"):
        paged.add_request([2] * n, exactly(3))
    assert not paged.has_unfinished_requests()
    assert len(run(paged, ([2, 3, 4], exactly(3)))[0].token_ids) == 3


def test_level_01_refuses_a_memory_that_holds_no_row():
    with pytest.raises(ValueError, match="60 slots hold no row of max_model_len 64"):
        engine(1, num_blocks=15)


@pytest.mark.parametrize("level", [2, 3])
def test_a_prompt_that_fills_the_pool_exactly_says_one_token(level):
    (answer,) = run(engine(level, num_blocks=4), ([2] * 16, exactly(9)))
    assert (len(answer.token_ids), answer.finish_reason) == (1, "length")


@pytest.mark.parametrize("level", [2, 3])
def test_alone_and_out_of_blocks_it_ends_with_what_it_has(level):
    answers = run(engine(level, num_blocks=2), ([2, 3, 4], exactly(30)), ([5], exactly(30)))
    ends = [(len(answer.token_ids), answer.finish_reason) for answer in answers]
    assert ends == [(9 - 3, "length"), (9 - 1, "length")]  # 8 slots, and the last token needs none


def test_a_prompt_longer_than_the_budget_runs_in_chunks():
    paged = engine(3, max_num_batched_tokens=8, max_model_len=16)
    run(paged, ([2] * 9, exactly(2)))
    assert ran(paged) == [{"0": 8}, {"0": 1}, {"0": 1}]


def test_budget_and_threshold_cut_the_chunks_of_long_prompts():
    paged = engine(
        3,
        max_num_batched_tokens=1024,
        long_prefill_token_threshold=400,
        num_blocks=200,
        block_size=16,
        max_model_len=1024,
    )
    run(paged, *[([2] * 800, exactly(4))] * 3)
    assert [list(step.values()) for step in ran(paged)[:3]] == [[400, 400, 224], [400, 400, 224], [1, 1, 352]]


@pytest.mark.parametrize("level", [2, 3])
def test_two_that_outgrow_the_pool_both_finish_and_say_what_they_would_have_said(level):
    requests = [(list(range(34)), exactly(35)), (list(range(34, 0, -1)), exactly(35))]
    tight = engine(level, FakeModel(vocab_size=64), num_blocks=7, block_size=16, max_model_len=128)
    ample = engine(level, FakeModel(vocab_size=64), num_blocks=70, block_size=16, max_model_len=128)
    answers = run(tight, *requests)
    assert said(answers) == said(run(ample, *requests))
    assert [len(answer.token_ids) for answer in answers] == [35, 35]
    assert 1 <= sum(len(step.preempted) for step in tight.trace.steps) <= 4


@pytest.mark.parametrize("level", [2, 3])
def test_whoever_gave_way_computes_prompt_and_answer_again_in_one_go(level):
    tight = engine(level, num_blocks=7, block_size=16, max_model_len=128)
    run(tight, *[([n] * 34, exactly(35)) for n in (2, 3)])
    (at,) = [i for i, step in enumerate(tight.trace.steps) if step.preempted == ["1"]]
    num_said = sum(step.num_scheduled_tokens.get("1") is not None for step in tight.trace.steps[:at])
    again = next(step for step in tight.trace.steps[at:] if "1" in step.admitted)
    assert num_said > 1
    assert again.num_scheduled_tokens["1"] == 34 + num_said


@pytest.mark.parametrize("level", [2, 3])
def test_whoever_gave_way_is_served_before_those_who_came_later(level):
    tight = engine(level, num_blocks=7, block_size=16, max_model_len=128)
    run(tight, *[([n] * 34, exactly(35)) for n in (2, 3)], ([4] * 17, exactly(1)))  # 3 + 3 blocks, then 2
    assert [name for step in tight.trace.steps for name in step.preempted] == ["1"]
    assert [name for step in tight.trace.steps for name in step.admitted] == ["0", "1", "1", "2"]


@pytest.mark.parametrize("seed", [None, 11])
@pytest.mark.parametrize(("budget", "n"), [(4, 10), (4, 3), (4, 4), (4, 5), (4, 8), (1, 5)])
def test_a_token_is_drawn_after_the_last_chunk_and_never_before(budget, n, seed):
    temperature = 0 if seed is None else 5.0
    params = SamplingParams(temperature=temperature, seed=seed, max_tokens=5, ignore_eos=True)
    request = (list(range(2, 2 + n)), params)
    chunked = engine(3, max_num_batched_tokens=budget)
    answers = run(chunked, request)
    chunks = [min(budget, n - start) for start in range(0, n, budget)]
    assert [step["0"] for step in ran(chunked)] == [*chunks, 1, 1, 1, 1]
    assert answers == run(engine(3), request) == run(engine(1), request)


def test_no_output_comes_before_the_prompt_is_through():
    chunked = engine(3, max_num_batched_tokens=4)
    chunked.add_request(list(range(2, 12)), exactly(2))
    assert [len(chunked.step()) for _ in range(4)] == [0, 0, 1, 1]


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_urgency_counts_only_where_the_policy_says_so(policy):
    paged = engine(3, scheduling_policy=policy, max_num_seqs=1)
    for name, priority in [("late", 2), ("sooner", 1), ("soonest", 0), ("soonest too", 0)]:
        paged.add_request([2, 3], exactly(1), name, priority=priority)
    order = [paged.step()[0].request_id for _ in range(4)]
    by_urgency = ["soonest", "soonest too", "sooner", "late"]
    assert order == (by_urgency if policy == "priority" else ["late", "sooner", "soonest", "soonest too"])


def test_the_least_urgent_gives_way_and_among_equals_the_newest():
    tight = engine(3, num_blocks=6, block_size=2, scheduling_policy="priority")
    for name, priority in [("a", 1), ("b", 0), ("c", 1)]:
        tight.add_request([2, 3, 4], exactly(6), name, priority=priority)
    while tight.has_unfinished_requests():
        tight.step()
    assert [name for step in tight.trace.steps for name in step.preempted][:2] == ["c", "a"]


def test_an_engine_that_makes_no_progress_raises():
    stuck = engine(3)
    stuck.add_request([2, 3], exactly(1))
    stuck.scheduler.schedule = stuck.scheduler.begin  # a policy that never serves anybody
    with pytest.raises(RuntimeError, match="no progress: 1 waiting, 0 running"):
        stuck.step()


@pytest.mark.parametrize("level", [1, 2, 3])
def test_a_row_of_nan_ends_its_request_and_nobody_else_notices(level):
    lucky = [([2, 3, 4], exactly(8)), ([5, 6], exactly(8))]
    alone = run(engine(level), *lucky)
    first, ended, second = run(
        engine(level, FakeModel(unlucky=frozenset({9}))), lucky[0], ([7, 9], exactly(8)), lucky[1]
    )
    assert (ended.token_ids, ended.finish_reason) == ([], "error")
    assert [first.token_ids, second.token_ids] == said(alone)


@pytest.mark.parametrize("level", [1, 2, 3])
def test_an_aborted_id_is_free_at_once_and_its_successor_is_somebody_else(level):
    paged = engine(level, max_num_seqs=2)
    for name in ("a", "b", "c"):
        paged.add_request([2, 3, 4], exactly(9), name)
    paged.step()
    for name in ("a", "c", "a", "nobody"):  # running, waiting, again, unknown
        paged.abort(name)
        paged.check_integrity()
    paged.add_request([5], exactly(2), "a")
    last = {}
    while paged.has_unfinished_requests():
        last.update({output.request_id: output for output in paged.step()})
    assert {name: len(output.outputs[0].token_ids) for name, output in last.items()} == {"a": 2, "b": 9}
