"""Choices say what as many requests would say; they share their prompt's full blocks, and nothing else."""

from dataclasses import replace
from random import Random

import pytest

from levels import NAMES, load
from minipaged.config import EngineConfig
from minipaged.sampling_params import SamplingParams
from minipaged.sequence import choice_seed

from .fake_model import Answer, FakeModel, answers_alone
from .worlds import new_model, random_work

LEVELS = range(1, len(NAMES) + 1)
PAGED = LEVELS[1:]
LIVELY = SamplingParams(n=3, temperature=4.0, seed=7, max_tokens=12, ignore_eos=True)


def engine(level, **fields):
    fields = {"num_blocks": 64, "block_size": 4, "max_model_len": 32} | fields
    return load(level).Engine(EngineConfig(**fields), FakeModel())


def serve(engine, *requests):
    """Add (prompt, params) requests and run them to their ends: the last output of each, in that order."""
    names = [engine.add_request(prompt, params) for prompt, params in requests]
    last = {}
    while engine.has_unfinished_requests():
        last |= {output.request_id: output for output in engine.step()}
        engine.check_integrity()
    return [last[name] for name in names]


def said(output):
    return [choice.token_ids for choice in output.outputs]


@pytest.mark.parametrize("level", LEVELS)
def test_choices_say_what_requests_with_their_seeds_would_say_and_differ(level):
    prompt = [2, 3, 4, 5, 6]
    (several,) = serve(engine(level), (prompt, LIVELY))
    single = [replace(LIVELY, n=1, seed=choice_seed(7, choice)) for choice in range(3)]
    assert said(several) == [said(output)[0] for output in serve(engine(level), *((prompt, one) for one in single))]
    assert len({*map(tuple, said(several))}) == 3
    assert said(several)[:1] == said(serve(engine(level), (prompt, replace(LIVELY, n=1)))[0]), "the first is n=1's"


@pytest.mark.parametrize("level", LEVELS)
def test_without_a_seed_they_differ_too(level):
    (output,) = serve(engine(level), ([2, 3, 4], replace(LIVELY, seed=None)))
    assert len({*map(tuple, said(output))}) == 3


@pytest.mark.parametrize("level", LEVELS)
def test_greedy_choices_are_equal(level):
    greedy = replace(LIVELY, temperature=0)
    (several,) = serve(engine(level), ([2, 3, 4, 5, 6], greedy))
    (single,) = serve(engine(level), ([2, 3, 4, 5, 6], replace(greedy, n=1)))
    assert said(several) == said(single) * 3


def test_the_full_block_of_a_prompt_is_shared_and_the_partly_filled_one_is_not():
    sharing = engine(4, num_blocks=8)
    sharing.add_request([2, 3, 4, 5, 6, 7], replace(LIVELY, n=2, max_tokens=6))
    sharing.step()
    first, second = sharing.holders
    assert first.block_table[0] == second.block_table[0]
    assert first.block_table[1] != second.block_table[1]
    counts = sharing.blocks.pool.ref_counts
    assert [counts[block] for block in (*first.block_table, second.block_table[1])] == [2, 1, 1]
    assert sharing.trace.steps[0].num_scheduled_tokens == {"0": 6 + 2}
    while sharing.has_unfinished_requests():
        sharing.step()
        sharing.check_integrity()
        assert min(counts) >= 0
    assert sharing.occupancy.num_free_blocks == 8


@pytest.mark.parametrize(("num_tokens", "num_shared"), [(3, 0), (4, 0), (5, 1), (8, 1), (9, 2), (13, 3)])
def test_all_full_blocks_but_the_one_that_the_last_token_is_in_are_found_in_the_same_step(num_tokens, num_shared):
    sharing = engine(4)
    sharing.add_request([2 + i % 9 for i in range(num_tokens)], LIVELY)
    (output,) = sharing.step()
    assert sharing.trace.steps[0].cached_tokens == {"0": 2 * 4 * num_shared}, "of the second and the third"
    assert output.num_cached_tokens == 0, "the first found nothing"
    num_blocks = -(-num_tokens // 4)
    assert 64 - sharing.occupancy.num_free_blocks == num_blocks + 2 * (num_blocks - num_shared)


@pytest.mark.parametrize(("level", "fields"), [(2, {}), (3, {}), (4, {"enable_prefix_caching": False})])
def test_where_nothing_is_remembered_nothing_is_shared(level, fields):
    plain = engine(level, **fields)
    plain.add_request([2 + i % 9 for i in range(9)], LIVELY)
    plain.step()
    assert len({block for seq in plain.holders for block in seq.block_table}) == 3 * 3


@pytest.mark.parametrize("level", PAGED)
def test_choices_that_give_way_to_each_other_say_what_they_say_with_ample_memory(level):
    requests = [([2, 3, 4, 5, 6, 7], LIVELY), ([8, 3, 4], replace(LIVELY, n=2, seed=9))]
    tight, ample = engine(level, num_blocks=7), engine(level)
    answers = serve(tight, *requests)
    assert [said(output) for output in answers] == [said(output) for output in serve(ample, *requests)]
    num_preemptions = sum(len(step.preempted) for step in tight.trace.steps)
    assert sum(output.num_preemptions for output in answers) == num_preemptions > 0
    assert tight.occupancy.num_free_blocks == 7


@pytest.mark.parametrize("level", PAGED)
def test_seats_are_for_choices_and_each_is_told_of_at_every_step(level):
    narrow = engine(level, max_num_seqs=2)
    narrow.add_request([2, 3], replace(LIVELY, max_tokens=2), "a")
    told = []
    while narrow.has_unfinished_requests():
        told += [([len(tokens) for tokens in said(output)], output.finished) for output in narrow.step()]
        assert len(narrow.holders) <= 2
    assert told == [([1, 1, 0], False), ([2, 2, 0], False), ([2, 2, 1], False), ([2, 2, 2], True)]


@pytest.mark.parametrize("num_steps", [0, 1, 3, 5])
@pytest.mark.parametrize("level", LEVELS)
def test_an_abort_ends_all_choices_and_leaves_nothing_behind(level, num_steps):
    paged = engine(level, max_num_seqs=2)  # two run, one waits
    paged.add_request([2, 3, 4, 5, 6], replace(LIVELY, max_tokens=4), "a")
    for _ in range(num_steps):  # after the fourth, two of them have ended
        paged.step()
    with pytest.raises(ValueError, match="'a' belongs to a request that is still running"):
        paged.add_request([2], LIVELY, "a")
    paged.abort("a")
    paged.check_integrity()
    assert not paged.desk.live
    assert paged.step() == []
    assert not paged.has_unfinished_requests()
    if level > 1:
        assert paged.occupancy.num_free_blocks == 64
    (output,) = serve(paged, ([2, 3, 4, 5, 6], LIVELY))
    assert said(output) == said(serve(engine(level), ([2, 3, 4, 5, 6], LIVELY))[0])


@pytest.mark.parametrize("level", LEVELS)
def test_a_choice_whose_logits_are_nan_ends_alone_and_its_request_says_so(level):
    model = new_model()
    params = SamplingParams(n=3, temperature=9.0, seed=0, max_tokens=9, ignore_eos=True)
    answers = answers_alone(model, [2, 3], params, 32)
    assert {answer.finish_reason for answer in answers} == {"error", "length"}, "or this seed shows nothing"
    config = EngineConfig(num_blocks=64, block_size=4, max_model_len=32)
    (output,) = serve(load(level).Engine(config, model), ([2, 3], params))
    assert heard(output) == answers
    assert "NaN" in output.error


def heard(output):
    return [Answer(tuple(said.token_ids), said.finish_reason, said.stop_reason) for said in output.outputs]


def storm(level, seed):
    """A life of a few requests that come, share, give way and are aborted: how often they shared, and gave way."""
    rng = Random(seed)
    config, visits = random_work(rng, level)
    engine = load(level).Engine(config, model := new_model())
    coming, aborted, last = list(enumerate(visits)), set(), {}
    while coming or engine.has_unfinished_requests():
        if coming and rng.random() < 0.4:
            i, visit = coming.pop(0)
            engine.add_request(visit.prompt, visit.params, str(i), visit.priority)
        if rng.random() < 0.05 and engine.desk.live:
            aborted.add(name := rng.choice(sorted(engine.desk.live)))
            engine.abort(name)
            engine.check_integrity()
        last |= {output.request_id: output for output in engine.step()}
        engine.check_integrity()
    for i, (prompt, params, _) in enumerate(visits):
        if str(i) not in aborted:
            assert heard(last[str(i)]) == answers_alone(model, prompt, params, config.max_model_len)
    assert not engine.desk.live
    assert engine.occupancy.num_free_blocks == config.num_blocks
    steps = engine.trace.steps
    return sum(sum(step.cached_tokens.values()) > 0 for step in steps), sum(len(step.preempted) for step in steps)


@pytest.mark.parametrize("level", PAGED)
def test_in_no_storm_does_anybody_say_anything_else_or_leave_anything_behind(level):
    num_shared, num_preempted = (
        sum(counts) for counts in zip(*(storm(level, seed) for seed in range(150)), strict=True)
    )
    assert num_preempted > 50
    assert num_shared > 100 or level < 4
