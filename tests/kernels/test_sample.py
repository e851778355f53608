"""The kernel's specification says what `minipaged.sampling` says, and what anybody can work out by hand."""

import math

import pytest
import torch
from hypothesis import given, settings

from minipaged.batch import Row
from minipaged.kernels.sample import edit_spec, sample_spec
from minipaged.sampling import sample, uniform
from minipaged.sampling_params import SamplingParams
from tests.kernels.asking import batches


@given(batches())
@settings(max_examples=100)
def test_a_row_gets_the_token_that_the_library_gives(batch):
    logits, asks, _ = batch
    rows = [
        Row(SamplingParams(temperature=a.temperature, min_p=a.min_p, top_k=a.top_k, top_p=a.top_p), a.seed, a.position)
        for a in asks
    ]
    tokens = [
        sample_spec(row, a.temperature, a.min_p, a.top_k, a.top_p, uniform(a.seed, a.position))
        for row, a in zip(logits.cpu(), asks, strict=True)
    ]
    assert tokens == sample(logits.cpu(), rows)


def edit(logits, counts, bias=(), penalties=(1.0, 0.0, 0.0), allowed=None):
    """counts by id"""
    x = torch.tensor(logits)
    added = torch.tensor(bias or [0.0] * len(counts))
    mask = torch.tensor([allowed is None or v in allowed for v in range(len(logits))])
    return edit_spec(
        x, torch.tensor(list(counts)), torch.tensor(list(counts.values())), added, penalties, mask
    ).tolist()


def test_repetition_makes_less_likely_on_either_side_of_zero():
    assert edit([2.0, -2.0], {0: 1, 1: 0}, penalties=(2.0, 0.0, 0.0)) == [1.0, -4.0]


def test_repetition_sees_the_prompt_and_the_others_do_not():
    counts = {7: 0, 9: 1, 8: -1}  # the prompt is 7 7, the output 9
    assert edit([2.0] * 10, counts, penalties=(2.0, 0.25, 0.5))[7:] == [1.0, 2.0, 0.25]


def test_frequency_counts_and_presence_does_not():
    assert edit([2.0] * 3, {0: 3, 2: 1}, penalties=(1.0, 0.25, 0.5)) == [0.75, 2.0, 1.25]


def test_bias_comes_after_the_penalties_and_the_mask_is_last():
    assert edit([2.0, 2.0], {0: 1}, (4.0,), (2.0, 0.0, 0.0)) == [5.0, 2.0]
    assert edit([2.0, 2.0], {0: 1}, (4.0,), allowed={1}) == [-math.inf, 2.0]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_where_nothing_is_left_or_something_is_no_number_there_is_no_token(temperature):
    for logits in ([-math.inf] * 5, [1.0, math.nan, 2.0]):
        assert sample_spec(torch.tensor(logits), temperature, 0.0, 0, 1.0, 0.5) == -1
    assert sample_spec(torch.tensor([1.0, math.inf]), temperature, 0.0, 0, 1.0, 0.5) == (1 if temperature == 0 else -1)
