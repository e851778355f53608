"""One row in, one token out: greedy, or from exactly the distribution that the request asked for.

Draws are of fixed seeds, so every chi-square below either always passes or never."""

import math
from collections import Counter
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minipaged.batch import NO_TOKEN, Row
from minipaged.sampling import draw, sample, uniform
from minipaged.sampling_params import SamplingParams

PROBS = [0.35, 0.25, 0.2, 0.1, 0.06, 0.04]
LOGITS = torch.tensor(PROBS).log() + 3.0  # softmax does not care about the 3
GREEDY = SamplingParams(temperature=0)


def row(position=0, seed=0, **params):
    return Row(SamplingParams(**params), seed, position)


def draw_many(logits, num_draws=4000, **params):
    """How often each token was drawn, at positions 0, 1, 2, ... of one seed."""
    rows = [row(position=i, **params) for i in range(num_draws)]
    return Counter(sample(logits.expand(num_draws, -1), rows))


def assert_follows(counts, probs):
    """Chi-square at the 99.9 % level, and nothing outside the support."""
    num_draws = sum(counts.values())
    expected = {token: p / sum(probs.values()) * num_draws for token, p in probs.items()}
    assert counts.keys() <= expected.keys()
    chi_square = sum((counts[token] - e) ** 2 / e for token, e in expected.items())
    critical = {0: 0.0, 1: 10.8, 2: 13.8, 3: 16.3, 4: 18.5, 5: 20.5}
    assert chi_square <= critical[len(expected) - 1]


def support(*tokens):
    return {token: PROBS[token] for token in tokens}


def test_greedy_takes_the_best_and_the_first_of_equals():
    logits = torch.tensor([[0.0, 2.0, 1.0], [5.0, -1.0, 5.0]])
    assert sample(logits, [Row(GREEDY, 0, 0), Row(GREEDY, 1, 0)]) == [1, 0]


def test_no_rows_no_tokens():
    assert sample(torch.empty(0, 6), []) == []


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({}, support(0, 1, 2, 3, 4, 5)),
        ({"top_k": 3}, support(0, 1, 2)),
        ({"top_k": 1}, support(0)),
        ({"top_p": 0.61}, support(0, 1, 2)),  # 0.35 + 0.25 is not enough
        ({"top_p": 0.59}, support(0, 1)),
        ({"top_p": 1e-6}, support(0)),
        ({"min_p": 0.5}, support(0, 1, 2)),  # at least half of 0.35
        ({"min_p": 1.0}, support(0)),
        ({"top_k": 3, "top_p": 0.74}, support(0, 1)),  # of the three's 0.8, 0.6 are 75 %
        ({"min_p": 0.25, "top_p": 0.88}, support(0, 1, 2)),  # of the four's 0.9, 0.8 are 88.9 %
    ],
)
def test_draws_follow_the_distribution_that_was_asked_for(params, expected):
    assert_follows(draw_many(LOGITS, **params), expected)


@pytest.mark.parametrize("temperature", [0.3, 0.7, 2.0])
def test_temperature_sharpens_or_flattens(temperature):
    probs = {token: p ** (1 / temperature) for token, p in enumerate(PROBS)}
    assert_follows(draw_many(LOGITS, temperature=temperature), probs)


def test_temperature_comes_before_the_cuts():
    # at temperature 0.5 the best three have 0.1225, 0.0625, 0.04 of 0.2402: two of them have 77 %
    assert set(draw_many(LOGITS, num_draws=500, temperature=0.5, top_p=0.75)) == {0, 1}
    assert set(draw_many(LOGITS, num_draws=500, temperature=0.5, min_p=0.4)) == {0, 1}


@pytest.mark.parametrize("top_k", [0, -1, 6, 9_999_999])
def test_top_k_of_nothing_or_everything_is_off(top_k):
    rows = [row(position=i, top_k=top_k) for i in range(200)]
    assert sample(LOGITS.expand(200, -1), rows) == sample(LOGITS.expand(200, -1), [row(position=i) for i in range(200)])


def test_of_equally_likely_tokens_as_many_are_kept_as_were_asked_for():
    equal = torch.zeros(8)
    assert set(draw_many(equal, num_draws=300, top_k=3)) == {0, 1, 2}
    assert set(draw_many(equal, num_draws=300, top_p=0.5)) == {0, 1, 2, 3}


@pytest.mark.parametrize("temperature", [1e-5, 1e-4, 1e-12])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_a_tiny_temperature_is_the_best_token_and_never_overflows(temperature, dtype):
    logits = torch.tensor([[1.0, 11.0625, 10.0], [-60000.0, 60000.0, 0.0]], dtype=dtype).float()
    assert sample(logits, [row(temperature=temperature)] * 2) == [1, 1]


def test_masked_tokens_are_never_drawn():
    logits = LOGITS.clone()
    logits[[1, 4]] = -math.inf
    assert_follows(draw_many(logits), support(0, 2, 3, 5))


@pytest.mark.parametrize("params", [{"temperature": 0}, {}, {"top_k": 2}, {"top_p": 0.5}, {"min_p": 0.1}])
def test_a_row_of_nans_has_no_token_and_nobody_else_notices(params):
    logits = torch.stack([LOGITS, LOGITS, LOGITS])
    logits[1, 3] = math.nan
    rows = [row(seed=s, **params) for s in range(3)]
    tokens = sample(logits, rows)
    assert tokens[1] == NO_TOKEN
    assert tokens[::2] == sample(torch.stack([LOGITS, LOGITS]), rows[::2])


MIXTURE = [
    {"temperature": 0},
    {"temperature": 0.8},
    {"top_k": 2},
    {"top_p": 0.7},
    {"min_p": 0.2, "temperature": 1.5},
    {"top_k": 4, "top_p": 0.8, "min_p": 0.1},
    {"top_k": 10_000_000},
]


@given(
    choices=st.lists(st.tuples(st.sampled_from(MIXTURE), st.integers(-(2**63), 2**63 - 1)), min_size=1, max_size=6),
    seed=st.integers(0, 99),
)
def test_a_row_draws_the_same_alone_and_in_any_company(choices, seed):
    logits = 3 * torch.randn(len(choices), 40, generator=torch.Generator().manual_seed(seed))
    rows = [row(position=7, seed=s, **params) for params, s in choices]
    alone = [sample(logits[i : i + 1], [rows[i]])[0] for i in range(len(rows))]
    assert sample(logits, rows) == alone
    assert sample(logits.flip(0), rows[::-1]) == alone[::-1]


def test_infinite_logits_are_no_distribution():
    logits = torch.stack([torch.full((6,), -math.inf), torch.where(LOGITS > 1.5, math.inf, LOGITS)])
    for params in ({}, {"top_k": 2}, {"top_p": 0.5}):
        assert sample(torch.cat([logits, LOGITS[None]]), [row(**params)] * 3)[:2] == [NO_TOKEN] * 2


def test_the_random_number_depends_on_seed_and_position_only():
    assert uniform(7, 3) == uniform(7, 3)
    assert len({uniform(seed, position) for seed in range(-50, 50) for position in range(50)}) == 5000
    assert all(0 <= uniform(seed, 2**40) < 1 for seed in (-(2**63), -1, 0, 2**63 - 1))


@pytest.mark.parametrize("axis", ["positions of one seed", "seeds at one position"])
def test_random_numbers_are_even(axis):
    numbers = [uniform(5, i) if axis == "positions of one seed" else uniform(i, 5) for i in range(20_000)]
    counts = Counter(int(u * 16) for u in numbers)
    assert sum((counts[i] - 1250) ** 2 / 1250 for i in range(16)) < 37.7  # 99.9 % of chi-square with 15
    lagged = sum((a - 0.5) * (b - 0.5) for a, b in pairwise(numbers)) / len(numbers) * 12
    assert abs(lagged) < 0.03


@pytest.mark.parametrize("vocab_size", [3000, 20_000])
def test_in_a_large_vocabulary_too_company_changes_nothing(vocab_size):
    logits = 3 * torch.randn(40, vocab_size, generator=torch.Generator().manual_seed(1))
    rows = [row(position=i, seed=i, **MIXTURE[i % len(MIXTURE)]) for i in range(40)]
    alone = [sample(logits[i : i + 1], [rows[i]])[0] for i in range(40)]
    assert sample(logits, rows) == alone
    assert sample(logits.flip(0), rows[::-1]) == alone[::-1]


def test_no_rows_draw_nothing():
    tokens, weights = draw(torch.empty(0, 6), [])
    assert (tokens.shape, weights.shape) == ((0,), (0, 6))
