"""Whoever is chosen is among the k best, with the weight of the specification; what is no number stays in its row."""

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minipaged.kernels.routing import route_spec
from minipaged.kernels.routing_triton import route
from tests.kernels.guard import DEVICE, DTYPES, guarded, randn

sizes = st.tuples(st.integers(0, 9), st.sampled_from([1, 2, 3, 8, 60, 64, 130]), st.integers(1, 8))


def check(logits, k, renormalize, weights, experts):
    """Weights are those of the experts named, best first; nobody who was left out is better."""
    probs = logits.float().softmax(-1)
    chosen = probs.gather(1, experts)
    expected = chosen / chosen.sum(-1, keepdim=True) if renormalize else chosen
    torch.testing.assert_close(weights, expected, rtol=2e-6, atol=1e-9)
    assert all(len(set(row)) == k for row in experts.tolist())
    assert (chosen.diff(dim=1) <= 1e-7).all()
    left = probs.scatter(1, experts, -1.0)
    assert not len(logits) or (left.amax(-1) <= chosen[:, -1] + 1e-7).all()


@given(sizes, st.booleans(), st.sampled_from(DTYPES), st.sampled_from([1, 5]))
@settings(max_examples=30)
def test_the_k_best_are_chosen_with_their_share_of_all_or_of_the_chosen(sizes, renormalize, dtype, step):
    num_tokens, num_experts, k = sizes
    k = min(k, num_experts)
    logits = 3 * randn(num_tokens, num_experts + step, dtype=dtype)[:, :num_experts]
    logits = (logits * step).round() / step if step > 1 else logits  # some are equal
    for make in (route_spec, partial(guarded, route)):
        check(logits, k, renormalize, *make(logits, k, renormalize))


def test_of_equal_experts_the_first_ones_are_taken():
    _, experts = guarded(route, torch.zeros(2, 20, device=DEVICE), 3, True)
    assert experts.tolist() == [[0, 1, 2]] * 2


@pytest.mark.parametrize("renormalize", [False, True])
def test_weights_of_two_of_four_are_renormalised_only_if_asked(renormalize):
    logits = torch.tensor([[1.0, 2.0, 3.0, 4.0]], device=DEVICE).log()
    expected = [4 / 7, 3 / 7] if renormalize else [0.4, 0.3]
    for make in (route_spec, route):
        weights, experts = make(logits, 2, renormalize)
        assert experts.tolist() == [[3, 2]]
        assert weights[0].tolist() == pytest.approx(expected)


@pytest.mark.parametrize("value", [torch.nan, -torch.inf, torch.inf])
def test_a_token_without_a_distribution_goes_to_real_experts_and_harms_nobody(value):
    logits = randn(5, 6)
    logits[1], logits[3, 2] = value, torch.nan
    with np.errstate(invalid="ignore"):
        weights, experts = guarded(route, logits, 2, True)
    check(logits[::2], 2, True, weights[::2], experts[::2])
    assert weights[1].isnan().all()
    assert weights[3].isnan().all()
    for row in experts.tolist():
        assert len(set(row)) == 2
        assert set(row) <= set(range(6))


def test_what_does_not_fit_is_refused_by_name():
    logits = torch.zeros(3, 4, device=DEVICE)
    for k in (0, 5):
        with pytest.raises(ValueError, match=f"{k} of 4 experts"):
            route(logits, k, True)
    with pytest.raises(ValueError, match="logits has shape"):
        route(logits[0], 1, True)
    with pytest.raises(ValueError, match="2000 experts"):
        route(torch.zeros(1, 2000, device=DEVICE), 1, True)
