"""Cuts and draws: loops that look at digits keep what sorting keeps, and find the token that it finds."""

import math
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minipaged.kernels.draw import BLOCK, cut_cpu, cut_spec, pick_cpu, pick_spec
from tests.kernels.asking import draw_logits
from tests.kernels.guard import guarded, on_threads

CUTS = {"sorted": cut_spec, "loops": cut_cpu, "on three threads": partial(on_threads, 3, cut_cpu)}
PICKS = {"summed": pick_spec, "loops": pick_cpu, "on three threads": partial(on_threads, 3, pick_cpu)}
cuts = pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
picks = pytest.mark.parametrize("pick", PICKS.values(), ids=PICKS)


def columns(min_p, top_k, top_p):
    return torch.tensor(min_p), torch.tensor(top_k), torch.tensor(top_p, dtype=torch.float64)


def kept(cut, weights, min_p=0.0, top_k=0, top_p=1.0):
    """How many of each row are left, and that nothing else became of them."""
    n = len(weights)
    left = cut(weights.clone(), *columns([min_p] * n, [top_k] * n, [top_p] * n))
    assert torch.equal(left, weights * (left > 0))
    return (left > 0).sum(-1).tolist()


@st.composite
def rows(draw):
    """Weights [N, V] whose largest is 1, of many kinds, and what each row asks for."""
    vocab_size = draw(st.sampled_from([1, 2, 7, 100, 127, 129, 300, 1000]))
    kinds = draw(st.lists(st.sampled_from(["spread", "steps", "flat", "sharp"]), min_size=1, max_size=5))
    logits = torch.stack([draw_logits(kind, vocab_size, draw(st.integers(0, 99))) for kind in kinds])
    scale = draw(st.sampled_from([0.01, 1.0, 20.0]))  # beyond -87 a weight is 0
    asked = draw(
        st.lists(
            st.tuples(
                st.sampled_from([0.0, 0.0, 1e-6, 0.3, 1.0]),
                st.sampled_from([0, -1, 1, 2, 6, 7, 50, vocab_size - 1, vocab_size, vocab_size + 9]),
                st.sampled_from([1.0, 1.0, 1e-9, 0.1, 0.5, 0.9, 0.99999]),
            ),
            min_size=len(kinds),
            max_size=len(kinds),
        )
    )
    return (scale * (logits - logits.amax(-1, keepdim=True))).exp(), columns(*zip(*asked, strict=True))


@settings(max_examples=300)
@given(rows())
def test_loops_keep_exactly_what_sorting_keeps(drawn):
    weights, asked = drawn
    assert torch.equal(cut_cpu(weights.clone(), *asked), cut_spec(weights, *asked))


@settings(max_examples=100)
@given(rows(), st.lists(st.floats(0, 1 - 2**-52), min_size=5, max_size=5))
def test_loops_find_exactly_the_token_that_sums_find(drawn, numbers):
    weights = cut_spec(drawn[0], *drawn[1])
    number = torch.tensor(numbers[: len(weights)], dtype=torch.float64)
    tokens = guarded(pick_cpu, weights, number)
    assert torch.equal(tokens, pick_spec(weights, number))
    assert (weights.gather(-1, tokens[:, None]) > 0).all()


@cuts
def test_of_tokens_tied_at_the_border_the_first_are_kept_in_every_row_by_itself(cut):
    weights = torch.tensor([[1.0, 0.5, 0.5, 0.5, 0.25], [0.5, 1.0, 0.25, 0.5, 0.25]])
    left = cut(weights.clone(), *columns([0.0, 0.0], [2, 3], [1.0, 1.0]))
    assert (left > 0).tolist() == [[True, True] + [False] * 3, [True, True, False, True, False]]
    left = cut(weights.clone(), *columns([0.0, 0.0], [0, 0], [0.7, 0.9]))
    assert (left > 0).tolist() == [[True] * 3 + [False] * 2, [True] * 4 + [False]]


@cuts
def test_top_p_counts_what_top_k_and_min_p_have_left(cut):
    weights = torch.tensor([[1.0, 0.5, 0.5, 0.5, 0.25]])
    assert kept(cut, weights, top_k=3, top_p=0.7) == [2]  # 1.5 of 2
    assert kept(cut, weights, top_k=3, top_p=0.8) == [3]
    assert kept(cut, weights, min_p=0.5, top_p=0.59) == [2]  # 1.5 of 2.5 are 0.6
    assert kept(cut, weights, min_p=0.51, top_k=4, top_p=0.99) == [1]


@cuts
def test_a_flat_row_keeps_as_many_as_were_asked_for(cut):
    flat = torch.ones(2, 5000)
    assert kept(cut, flat, top_k=37) == [37] * 2
    assert kept(cut, flat, top_p=0.8999) == [4500] * 2
    assert kept(cut, flat, top_p=1e-9) == [1] * 2
    assert kept(cut, flat, top_k=10_000_000) == kept(cut, flat, top_k=-1) == kept(cut, flat, min_p=1.0) == [5000] * 2


@cuts
@pytest.mark.parametrize("nan", [math.nan, -math.nan])
def test_a_row_with_a_nan_stays_one_and_has_no_token(cut, nan):
    weights = torch.rand(3, 300, generator=torch.Generator().manual_seed(0))
    weights[:, 17] = 1
    weights[1, 200] = nan
    for asked in ((0.0, 5, 1.0), (0.0, 0, 0.5), (0.5, 7, 0.5)):
        left = cut(weights.clone(), *columns(*([value] * 3 for value in asked)))
        for pick in PICKS.values():
            tokens = pick(left, torch.tensor([0.5] * 3, dtype=torch.float64)).tolist()
            assert tokens[1] == -1
            assert min(tokens[0], tokens[2]) >= 0


@picks
@pytest.mark.parametrize("vocab_size", [BLOCK - 1, BLOCK, BLOCK + 1, 1000])
def test_a_number_finds_its_token_whichever_block_it_lies_in(pick, vocab_size):
    weights = torch.zeros(1, vocab_size)
    weights[0, [0, 126, vocab_size // 2, vocab_size - 1]] = torch.tensor([1.0, 2.0, 1.0, 4.0])
    ends = weights[0].double().cumsum(-1) / weights.sum()
    for number in [0.0, 0.1, 0.2, 0.3, 0.45, 0.55, 0.9, 1 - 2**-52]:
        assert pick(weights, torch.tensor([number], dtype=torch.float64)).tolist() == [int((ends <= number).sum())]


@picks
def test_no_number_finds_a_token_without_weight(pick):
    weights = torch.rand(50, 600, generator=torch.Generator().manual_seed(0)) ** 9
    weights[:, 100:160] = weights[:, 250:] = 0  # a block ends in zeros, and so does the row
    sums = weights.double().cumsum(-1) / weights.double().sum(-1, keepdim=True)
    for border in (99, 127, 249):  # at the very border, where a rounded sum may fall on either side
        numbers = sums[:, border].clamp(max=1 - 2**-52)
        for number in (numbers, numbers.nextafter(torch.zeros_like(numbers))):
            assert (weights.gather(-1, pick(weights, number)[:, None]) > 0).all()


@picks
def test_where_there_is_no_weight_there_is_no_token(pick):
    assert pick(torch.zeros(2, 40), torch.zeros(2, dtype=torch.float64)).tolist() == [-1, -1]
    assert pick(torch.zeros(0, 40), torch.zeros(0, dtype=torch.float64)).tolist() == []
