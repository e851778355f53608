import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minipaged.kernels.silu_mul import silu_mul, silu_mul_spec
from tests.kernels.guard import DTYPES, assert_close, guarded, randn


@given(st.integers(0, 9), st.sampled_from([1, 7, 64, 1023, 1025, 2500]), st.sampled_from(DTYPES))
@settings(max_examples=40)
def test_the_gate_opens_and_shuts_the_other_half(num_tokens, size, dtype):
    gate_up = 3 * randn(num_tokens, 2 * size + 5, dtype=dtype)[:, : 2 * size]
    assert_close(guarded(silu_mul, gate_up), silu_mul_spec(gate_up.float()), largest=64)


def test_gates_of_any_size_neither_overflow_nor_lose_their_sign():
    gate = torch.tensor([[-1e4, -88.0, 0.0, 88.0, 1e4]])
    gate_up = torch.cat((gate, torch.ones_like(gate)), dim=-1).to(randn(1).device)
    with np.errstate(over="ignore"):  # 1 / (1 + inf) is the zero it ought to be
        out = guarded(silu_mul, gate_up)
    assert_close(out[0, 2:], gate_up[0, 2:5], largest=1e4)
    assert out[0, :2].abs().max() < 1e-30


def test_what_does_not_fit_is_refused_by_name():
    with pytest.raises(ValueError, match="gate_up has 5 columns"):
        silu_mul(randn(3, 5))
    with pytest.raises(ValueError, match=r"gate_up has shape \(3, 5, 2\), expected \('any', 'any'\)"):
        silu_mul(randn(3, 5, 2))
