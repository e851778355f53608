"""Logprobs are the model's own, of every token once, however the engine came to it."""

import math

import pytest
import torch

from levels import NAMES, load
from minipaged.batch import Batch, Known, Row
from minipaged.config import EngineConfig
from minipaged.loading import load_model
from minipaged.logprobs import measure
from minipaged.sampling_params import SamplingParams

from .chances import Dice
from .drafters import DRAFTERS
from .plain import check_scores
from .tiny import VOCAB_SIZE, reference_logits, tiny_model

LEVELS = range(1, len(NAMES) + 1)
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=2, prompt_logprobs=2)
PROMPT = [2, 3, 5, 2, 4, 3, 3, 2, 5]


def build(level, model=None, **fields):
    fields = {"num_blocks": 64, "block_size": 4, "max_model_len": 64} | fields
    return load(level).Engine(EngineConfig(**fields), model or Dice())


def serve(engine, *requests):
    """The last output of each (prompt, params), all at once."""
    names = [engine.add_request(prompt, params) for prompt, params in requests]
    last = {}
    while engine.has_unfinished_requests():
        last |= {output.request_id: output for output in engine.step()}
        engine.check_integrity()
    return [last[name] for name in names]


def measured(logits, token_id, num_logprobs):
    """One token drawn from one row, and what was thought of it."""
    row = Row(SamplingParams(logprobs=num_logprobs), 0, 1)
    batch = Batch.empty()._replace(row_start_loc=[0, 1], rows=[row])
    [(_, [scores])] = measure(batch, torch.tensor([logits]), [[token_id]])
    return {token: (round(score.logprob, 4), score.rank) for token, score in scores.items()}


def test_a_logprob_is_the_log_of_the_softmax_and_a_rank_counts_the_likelier():
    probs = [0.5, 0.3, 0.15, 0.05]
    logits = [math.log(p) + 7 for p in probs]
    logs = [round(math.log(p), 4) for p in probs]
    assert measured(logits, 2, 0) == {2: (logs[2], 3)}
    assert measured(logits, 2, 1) == {2: (logs[2], 3), 0: (logs[0], 1)}
    assert measured(logits, 0, 2) == {0: (logs[0], 1), 1: (logs[1], 2)}, "the token itself is one of them"
    everything = {i: (logs[i], i + 1) for i in range(4)}
    assert measured(logits, 3, -1) == measured(logits, 3, 4) == everything
    assert next(iter(measured(logits, 3, -1))) == 3


def test_equally_likely_tokens_share_a_rank():
    ranks = {token: rank for token, (_, rank) in measured([1.0, 3.0, 1.0, 3.0, 0.0], 2, -1).items()}
    assert ranks == {1: 1, 3: 1, 0: 3, 2: 3, 4: 5}


def test_what_the_model_excludes_has_a_logprob_of_minus_infinity():
    assert measured([0.0, -math.inf], 0, 2) == {0: (0.0, 1), 1: (-math.inf, 2)}


def test_known_rows_come_behind_all_that_are_sampled():
    rows = [Row(SamplingParams(logprobs=0), 0, 1), Row(SamplingParams(), 0, 1)]
    batch = Batch.empty()._replace(row_start_loc=[0, 1, 2], rows=rows, known=[Known(1, 1, 0), Known(1, 0, 0)])
    logits = torch.tensor([[0.0, 1.0], [9.0, 9.0], [2.0, 0.0], [3.0, 0.0]])
    first, second = measure(batch, logits, [[1], [0]])
    assert (len(first.prompt), [list(scores) for scores in first.gained]) == (0, [[1]])
    assert (len(second.gained), [list(scores) for scores in second.prompt]) == (0, [[1], [0]])
    assert [scores[token].rank for scores, token in zip(second.prompt, (1, 0), strict=True)] == [2, 1]


def test_many_rows_at_once_are_as_many_one_by_one():
    logits = torch.randn(150, 9, generator=torch.Generator().manual_seed(0))
    batch = Batch.empty()._replace(row_start_loc=[0], known=[Known(0, i % 9, i % 4 - 1) for i in range(150)])
    batch.row_start_loc.append(0)
    [(scores, _)] = measure(batch, logits, [[]])
    # one list holds them by how many are asked for: here of -1, 0, 1 and 2, in that order of first asking
    order = sorted(range(150), key=lambda i: i % 4)
    for i, entry in zip(order, scores, strict=True):
        assert entry[i % 9].logprob == pytest.approx(float(logits[i].log_softmax(-1)[i % 9]))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("prompt", [PROMPT, [4], [2, 3]], ids=len)
def test_every_level_reports_the_models_own_for_prompt_and_answer(level, prompt):
    (output,) = serve(build(level), (prompt, GREEDY))
    check_scores(Dice(), GREEDY, output)
    assert (len(output.prompt_logprobs), len(output.outputs[0].logprobs)) == (len(prompt), 12)


@pytest.mark.parametrize("level", LEVELS)
def test_whoever_does_not_ask_gets_none(level):
    (output,) = serve(build(level), (PROMPT, SamplingParams(max_tokens=2)))
    assert (output.prompt_logprobs, output.outputs[0].logprobs, output.outputs[0].cumulative_logprob) == (None,) * 3


@pytest.mark.parametrize("level", LEVELS)
def test_neither_temperature_nor_wishes_change_what_the_model_thought(level):
    wishes = {"temperature": 3.0, "seed": 5, "frequency_penalty": 1.0, "logit_bias": {2: -100}, "top_k": 3}
    params = SamplingParams(max_tokens=12, ignore_eos=True, min_tokens=3, logprobs=-1, prompt_logprobs=0, **wishes)
    (output,) = serve(build(level), (PROMPT, params))
    check_scores(Dice(), params, output)
    assert all(len(entry) == Dice().vocab_size for entry in output.outputs[0].logprobs)


@pytest.mark.parametrize("level", LEVELS[2:])
@pytest.mark.parametrize("budget", [1, 2, 3, 5, 8, 9, 10])
def test_a_prompt_in_chunks_has_the_same_entries(level, budget):
    (output,) = serve(build(level, max_num_batched_tokens=budget), (PROMPT, GREEDY))
    check_scores(Dice(), GREEDY, output)


class Counting(Dice):
    """Counts the rows that are measured only."""

    num_known = 0

    def __call__(self, batch, kv_cache):
        self.num_known += len(batch.known)
        return super().__call__(batch, kv_cache)


@pytest.mark.parametrize("level", LEVELS[1:])
def test_whoever_gave_way_is_not_measured_again(level):
    model = Counting()
    engine = build(level, model, num_blocks=9, block_size=2)
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=1, prompt_logprobs=1)
    for output in serve(engine, (PROMPT[:6], params), (PROMPT[2:], params)):
        check_scores(Dice(), params, output)
    assert any(step.preempted for step in engine.trace.steps)
    assert model.num_known == 5 + 6


@pytest.mark.parametrize("level", LEVELS[2:])
def test_a_prompt_that_gave_way_halfway_goes_on_where_it_was(level):
    model = Counting()
    engine = build(level, model, num_blocks=5, block_size=2, max_num_batched_tokens=3)
    first = engine.add_request(PROMPT[:3], SamplingParams(temperature=0, max_tokens=7, ignore_eos=True))
    engine.step()
    second = engine.add_request(PROMPT[3:9], GREEDY)
    outputs = {}
    while engine.has_unfinished_requests():
        outputs |= {output.request_id: output for output in engine.step()}
    assert outputs[first].prompt_logprobs is None
    check_scores(Dice(), GREEDY, outputs[second])
    assert any(second in step.preempted for step in engine.trace.steps)
    assert model.num_known == 5


@pytest.mark.parametrize("level", LEVELS)
def test_choices_share_their_prompts_entries_which_are_measured_once(level):
    model = Counting()
    params = SamplingParams(n=3, temperature=1.0, seed=3, max_tokens=5, ignore_eos=True, logprobs=1, prompt_logprobs=1)
    (output,) = serve(build(level, model), (PROMPT, params))
    check_scores(Dice(), params, output)
    assert len({tuple(said.token_ids) for said in output.outputs}) > 1
    assert model.num_known == len(PROMPT) - 1


@pytest.mark.parametrize("level", LEVELS[3:])
@pytest.mark.parametrize(("block_size", "length"), [(4, 5), (4, 8), (4, 9), (32, 31), (32, 33)])
def test_a_known_prompt_is_computed_for_those_who_ask_about_it_and_found_by_all_others(level, block_size, length):
    prompt = (PROMPT * 4)[:length]
    engine = build(level, block_size=block_size, max_model_len=128)
    ask, silent = GREEDY, SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
    (cold,) = serve(engine, (prompt, ask))
    (again,) = serve(engine, (prompt, ask))
    (other,) = serve(engine, (prompt, silent))
    check_scores(Dice(), ask, again)
    assert again.prompt_logprobs == cold.prompt_logprobs
    assert (again.num_cached_tokens, other.num_cached_tokens) == (0, (length - 1) // block_size * block_size)


def test_logprobs_of_the_answer_alone_leave_hits_as_they_are():
    engine = build(4)
    ask = SamplingParams(temperature=0, max_tokens=2, logprobs=1)
    assert [output.num_cached_tokens for output in (*serve(engine, (PROMPT, ask)), *serve(engine, (PROMPT, ask)))] == [
        0,
        8,
    ]


@pytest.mark.parametrize("level", LEVELS[2:])
def test_an_abort_before_the_prompt_is_read_leaves_nothing_behind(level):
    engine = build(level, max_num_batched_tokens=4)
    engine.add_request(PROMPT, GREEDY, "a")
    engine.step()
    engine.abort("a")
    engine.add_request(PROMPT, GREEDY, "a")
    while engine.has_unfinished_requests():
        outputs = engine.step()
    check_scores(Dice(), GREEDY, outputs[0])


@pytest.mark.parametrize("level", LEVELS)
def test_a_row_of_nans_ends_the_answer_and_keeps_what_was_measured(level):
    model = Dice()
    model.logits = lambda tokens: [math.nan] * 6 if len(tokens) > 10 else Dice().logits(tokens)
    (output,) = serve(build(level, model), (PROMPT, GREEDY))
    assert (output.outputs[0].finish_reason, len(output.outputs[0].logprobs)) == ("error", 2)
    check_scores(Dice(), GREEDY, output)


# under speculation, on a real model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def model(folder):
    return load_model(EngineConfig(model=str(folder)))


REAL_PROMPT = [7, 60, 7, 31, 12, 60, 7]


def speculated(model, params, drafter=None):
    """What level 05 says with this drafter (None: level 04), and how many guesses were right."""
    (plain,) = serve(build(4, model), (REAL_PROMPT, params))
    if drafter is None:
        return plain, 0
    engine = build(5, model, num_speculative_tokens=3)
    engine.drafter = DRAFTERS[drafter](engine, lambda seq: plain.outputs[0].token_ids)
    (output,) = serve(engine, (REAL_PROMPT, params))
    return output, sum(sum(step.accepted_tokens.values()) for step in engine.trace.steps)


@pytest.mark.parametrize("drafter", [None, "perfect", "wrong", "ngram", "draft model"])
def test_logprobs_are_those_of_transformers_whoever_guessed(folder, model, drafter):
    params = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True, logprobs=1, prompt_logprobs=1)
    output, num_right = speculated(model, params, drafter)
    (said,) = output.outputs
    logprobs = reference_logits(folder, REAL_PROMPT + said.token_ids).log_softmax(-1)
    entries = [*output.prompt_logprobs[1:], *said.logprobs]
    for row, token, entry in zip(logprobs, [*REAL_PROMPT[1:], *said.token_ids], entries, strict=False):
        assert entry[token].logprob == pytest.approx(float(row[token]), abs=1e-4)
        assert max(one.logprob for one in entry.values()) == pytest.approx(float(row.max()), abs=1e-4)
    assert len(entries) == len(REAL_PROMPT) - 1 + 16
    assert all(entry[token].rank == 1 for token, entry in zip(said.token_ids, said.logprobs, strict=True))
    assert num_right >= {"perfect": 12, "draft model": 12}.get(drafter, 0)


@pytest.mark.parametrize("drafter", ["perfect", "wrong", "ngram", "random", "draft model"])
@pytest.mark.parametrize("seed", [None, 5], ids=["greedy", "seeded"])
def test_penalties_and_min_tokens_count_tokens_not_steps(model, drafter, seed):
    if seed and drafter == "draft model":
        return  # what is drawn with a draft model has the right distribution only
    how = {"temperature": 0} if seed is None else {"temperature": 1.0, "seed": seed}
    greedy, _ = speculated(model, SamplingParams(max_tokens=6, ignore_eos=True, **how))
    ends = greedy.outputs[0].token_ids[2:4]
    for wishes in ({}, {"frequency_penalty": 0.5}, {"frequency_penalty": 2.0}, {"repetition_penalty": 1.5}):
        params = SamplingParams(min_tokens=6, max_tokens=16, stop_token_ids=ends, logprobs=1, **how, **wishes)
        plain, _ = speculated(model, params)
        guessed, num_right = speculated(model, params, drafter)
        assert guessed.outputs[0].token_ids == plain.outputs[0].token_ids
        assert guessed.outputs[0].cumulative_logprob == pytest.approx(plain.outputs[0].cumulative_logprob, abs=1e-3)
        assert not set(ends) & set(plain.outputs[0].token_ids[:5])
        assert num_right or drafter not in ("perfect", "draft model")
    assert max(ends) < VOCAB_SIZE
