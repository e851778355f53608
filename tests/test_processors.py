"""What a request wishes of its logits: by hand, against transformers, in plain Python; in one order, row by row."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    PrefixConstrainedLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from minipaged.batch import NO_TOKEN, Chunk, Row, pack, row_after
from minipaged.processors import process
from minipaged.sampling import distribution, sample
from minipaged.sampling_params import SamplingParams
from minipaged.sequence import Sequence

from .plain import check_wishes

INF = math.inf


def row(prompt=(), output=(), held_back=(), seed=0, **params):
    params = SamplingParams(**params)
    return Row(params, seed, len(prompt) + len(output), tuple(prompt), tuple(output), frozenset(held_back))


def one(logits, **wishes):
    return process(torch.tensor([logits]), [row(**wishes)])[0].tolist()


@pytest.mark.parametrize(
    ("wishes", "logits", "expected"),
    [
        ({"repetition_penalty": 2, "prompt": [0, 1]}, [2.0, -2.0, 5.0], [1.0, -4.0, 5.0]),
        ({"repetition_penalty": 2, "output": [0, 1]}, [2.0, -2.0, 5.0], [1.0, -4.0, 5.0]),
        ({"repetition_penalty": 2, "prompt": [0, 0], "output": [0]}, [2.0, -2.0], [1.0, -2.0]),  # once, however often
        ({"repetition_penalty": 0.5, "output": [0, 1]}, [2.0, -2.0], [4.0, -1.0]),
        ({"repetition_penalty": 2, "output": [0]}, [0.0, 1.0], [0.0, 1.0]),
        ({"presence_penalty": 0.5, "output": [1, 1, 1]}, [2.0, 2.0], [2.0, 1.5]),
        ({"frequency_penalty": 0.5, "output": [1, 1, 1]}, [2.0, 2.0], [2.0, 0.5]),
        ({"frequency_penalty": -2, "presence_penalty": 1, "output": [1, 1]}, [2.0, 2.0], [2.0, 5.0]),
        ({"presence_penalty": 2, "frequency_penalty": 2, "prompt": [0, 1]}, [2.0, 2.0], [2.0, 2.0]),
        ({"logit_bias": {0: -100, 2: 1.5}}, [2.0, 2.0, 2.0], [-98.0, 2.0, 3.5]),
        ({"allowed_token_ids": [2, 0, 2]}, [1.0, 2.0, 3.0], [1.0, -INF, 3.0]),
        ({"held_back": [1]}, [1.0, 2.0], [1.0, -INF]),
    ],
    ids=str,
)
def test_each_wish_does_what_its_formula_says(wishes, logits, expected):
    assert one(logits, **wishes) == expected


def test_repetition_sees_prompt_and_output_and_the_other_penalties_only_the_output():
    logits, penalties = [4.0] * 10, {"repetition_penalty": 2, "presence_penalty": 0.5, "frequency_penalty": 0.25}
    for output in ([], [9]):
        expected = [2.0 if token == 7 else 2.0 - 0.75 if token in output else 4.0 for token in range(10)]
        assert one(logits, prompt=[7, 7], output=output, **penalties) == expected


def test_a_product_comes_before_a_difference_and_bias_after_both():
    wishes = {"repetition_penalty": 2, "presence_penalty": 1, "logit_bias": {0: 3}, "output": [0]}
    assert one([6.0, 0.0], **wishes) == [6 / 2 - 1 + 3, 0.0]


def test_no_bias_brings_back_what_must_not_be_said():
    wishes = {"logit_bias": {0: 100, 1: 100}, "allowed_token_ids": [0, 2], "held_back": [0]}
    assert one([0.0, 0.0, 0.0], **wishes) == [-INF, -INF, 0.0]


def test_wishes_come_before_temperature_and_cuts():
    logits = torch.tensor([[2.0, 1.0, 0.0, -9.0]]).expand(300, -1)
    ban_best = {"logit_bias": {0: -100}}
    kept = {sample(logits[:1], [row(seed=seed, top_k=1, **ban_best)])[0] for seed in range(20)}
    assert kept == {1}, "top_k counts what the bias has left"
    rows = [row(seed=seed, temperature=2, presence_penalty=1, output=[0], top_p=0.85) for seed in range(300)]
    assert set(sample(logits, rows)) == {0, 1, 2}, "at temperature 2 from logits 1, 1, 0: 38 %, 38 % and 23 %"


def test_greedy_takes_the_best_of_what_is_left():
    logits = torch.tensor([[5.0, 4.0, 3.0]]).expand(4, -1)
    wishes = [{}, {"logit_bias": {2: 3}}, {"allowed_token_ids": [1, 2]}, {"repetition_penalty": 2, "prompt": [0, 1]}]
    assert sample(logits, [row(temperature=0, **each) for each in wishes]) == [0, 2, 1, 2]


@pytest.mark.parametrize("temperature", [0, 1])
def test_where_nothing_is_left_nothing_is_said(temperature):
    rows = [row(temperature=temperature, allowed_token_ids=[1], held_back=[1]), row(temperature=temperature)]
    logits = torch.tensor([[1.0, 2.0, 0.0], [-60.0, 60.0, -60.0]])
    assert sample(logits, rows) == [NO_TOKEN, 1]


@pytest.mark.parametrize("wish", [{"allowed_token_ids": [1]}, {"logit_bias": {0: 1}}, {"held_back": [0]}, {}], ids=str)
@pytest.mark.parametrize("temperature", [0, 1])
def test_a_row_of_nans_stays_one_whatever_it_wishes_and_nobody_else_notices(wish, temperature):
    logits = torch.tensor([[1.0, 2.0, 0.0], [math.nan] * 3, [0.0, 9.0, 0.0]])
    others = row(temperature=0, presence_penalty=2, output=[1], seed=3)
    mixed = sample(logits, [others, row(temperature=temperature, **wish), others])
    assert mixed == [0, NO_TOKEN, 1]


def test_without_wishes_nothing_is_copied_and_with_some_the_models_own_logits_stay():
    logits = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
    original, plain = logits.clone(), row(temperature=0)
    assert process(logits, [plain] * 3) is logits
    changed = process(logits, [plain, row(logit_bias={3: 1}), row(allowed_token_ids=[2])])
    assert torch.equal(logits, original)
    assert torch.equal(changed[0], logits[0])
    assert (changed != logits).sum(-1).tolist() == [0, 1, 7]


@given(st.integers(0, 10**6), st.integers(1, 6))
def test_all_wishes_at_once_are_what_plain_python_makes_of_each_row_alone(seed, num_rows):
    check_wishes(seed, num_rows)


def test_a_drafts_row_knows_the_drafts_before_it_and_a_batch_is_a_copy():
    params = SamplingParams(frequency_penalty=0.5, min_tokens=3, stop_token_ids=[6])
    seq = Sequence("x", [5, 5], params, 99, frozenset({0}))
    seq.append(7)
    seq.num_computed_tokens, seq.block_table = 2, [0, 1]
    batch = pack([Chunk(seq, 1, drafts=(7, 8, 9))], block_size=4)
    seq.append(1)
    assert [row.output for row in batch.rows] == [(7,), (7, 7), (7, 7, 8), (7, 7, 8, 9)]
    assert [sorted(row.held_back) for row in batch.rows] == [[0, 6], [0, 6], [], []], "three are out, then four"
    assert {row.prompt for row in batch.rows} == {(5, 5)}


def test_whoever_wishes_nothing_carries_no_history():
    seq = Sequence("x", [5, 6], SamplingParams(temperature=0.5, top_k=3), 99, frozenset({0}))
    assert row_after(seq, (7,)) == Row(seq.params, 0, 3)


def test_min_tokens_holds_back_eos_even_where_it_would_not_stop():
    params = SamplingParams(min_tokens=2, ignore_eos=True)
    assert row_after(Sequence("x", [5], params, 99, frozenset({0, 1}))).held_back == {0, 1}


# transformers' processors, where it has one of that name


def of_transformers(processors, prompt, output, logits):
    scores = torch.tensor([logits])
    for processor in processors:
        scores = processor(torch.tensor([[*prompt, *output]]), scores)
    return scores[0]


LOGITS = [1.5, -0.5, 3.0, 0.25, -2.0, 2.5]


@pytest.mark.parametrize("penalty", [0.5, 1.3, 2.0])
def test_repetition_is_that_of_transformers(penalty):
    expected = of_transformers([RepetitionPenaltyLogitsProcessor(penalty)], [1, 1, 4], [2], LOGITS)
    assert one(LOGITS, prompt=[1, 1, 4], output=[2], repetition_penalty=penalty) == pytest.approx(expected.tolist())


def test_bias_and_allowed_tokens_are_those_of_transformers():
    processors = [
        SequenceBiasLogitsProcessor([[[2], -4.0], [[5], 1.0]]),
        PrefixConstrainedLogitsProcessor(lambda batch, tokens: [0, 2, 5], num_beams=1),
    ]
    expected = of_transformers(processors, [1], [2], LOGITS)
    wishes = {"logit_bias": {2: -4.0, 5: 1.0}, "allowed_token_ids": [0, 2, 5]}
    assert one(LOGITS, prompt=[1], output=[2], **wishes) == expected.tolist()


@pytest.mark.parametrize("num_out", range(5))
def test_min_tokens_is_that_of_transformers(num_out):
    seq = Sequence("x", [1, 4], SamplingParams(min_tokens=3), 99, frozenset({2, 5}))
    seq.tokens += [3] * num_out
    processor = MinNewTokensLengthLogitsProcessor(prompt_length_to_skip=2, min_new_tokens=3, eos_token_id=[2, 5])
    expected = of_transformers([processor], [1, 4], [3] * num_out, LOGITS)
    assert process(torch.tensor([LOGITS]), [row_after(seq)])[0].tolist() == expected.tolist()


@pytest.mark.parametrize("temperature", [0.5, 1.7])
@pytest.mark.parametrize(("top_k", "top_p", "min_p"), [(0, 1, 0), (3, 1, 0), (0, 0.7, 0), (0, 1, 0.2), (4, 0.8, 0.05)])
def test_temperature_and_cuts_are_those_of_transformers(temperature, top_k, top_p, min_p):
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    warpers = [TemperatureLogitsWarper(temperature)]
    warpers += [MinPLogitsWarper(min_p)] if min_p else []
    warpers += [TopKLogitsWarper(top_k)] if top_k else []
    warpers += [TopPLogitsWarper(top_p)] if top_p < 1 else []
    weights = distribution(torch.tensor([LOGITS]), [params])[0]
    expected = of_transformers(warpers, [1], [], LOGITS).softmax(-1)
    torch.testing.assert_close(weights / weights.sum(), expected)
