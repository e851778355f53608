import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minipaged.kernels.silu_mul import silu_mul_cpu, silu_mul_spec
from minipaged.kernels.silu_mul_triton import silu_mul
from tests.kernels.guard import assert_close, guarded, makes, randn

MAKES = makes(silu_mul, silu_mul_cpu)
in_float32 = pytest.mark.parametrize("make", [make for make, dtype in MAKES if dtype == torch.float32])


@given(st.integers(0, 9), st.sampled_from([1, 7, 64, 1023, 1025, 2500]), st.sampled_from(MAKES))
@settings(max_examples=30)
def test_the_gate_opens_and_shuts_the_other_half(num_tokens, size, make):
    silu_mul, dtype = make
    gate_up = 3 * randn(num_tokens, 2 * size + 5, dtype=dtype)[:, : 2 * size]
    assert_close(guarded(silu_mul, gate_up), silu_mul_spec(gate_up.float()), largest=64)


def one_gate_each(gates):
    return torch.cat((gates, torch.ones_like(gates)))[None].to(randn(1).device)


@in_float32
def test_gates_of_any_size_neither_overflow_nor_lose_their_sign(make):
    gate_up = one_gate_each(torch.tensor([-1e4, -88.0, 0.0, 88.0, 1e4]))
    with np.errstate(over="ignore"):  # 1 / (1 + inf) is the zero it ought to be
        out = guarded(make, gate_up)
    assert_close(out[0, 2:], gate_up[0, 2:5], largest=1e4)
    assert out[0, :2].abs().max() < 1e-30


@in_float32
def test_what_is_no_number_comes_out_where_torch_has_it_and_nowhere_else(make):
    gate_up = randn(3, 64)
    gate_up[1, :3] = torch.tensor([torch.nan, torch.inf, -torch.inf])
    gate_up[2, 32:34] = torch.tensor([torch.nan, torch.inf])
    with np.errstate(over="ignore", invalid="ignore"):
        out = guarded(make, gate_up)
    torch.testing.assert_close(out, silu_mul_spec(gate_up), equal_nan=True)


def test_the_cpu_twin_is_as_exact_as_its_first_page_says():
    gate_up = one_gate_each(torch.linspace(-87, 87, 100_001))
    exact = silu_mul_spec(gate_up.double())
    bound = 2e-7 * (1 + gate_up[:, :100_001].abs()) * exact.abs()
    assert ((silu_mul_cpu(gate_up).double() - exact).abs() <= bound).all()
    assert silu_mul_cpu(one_gate_each(-torch.logspace(1.94, 38, 1000))).abs().max() < 1e-35


def test_what_does_not_fit_is_refused_by_name():
    with pytest.raises(ValueError, match="gate_up has 5 columns"):
        silu_mul(randn(3, 5))
    with pytest.raises(ValueError, match=r"gate_up has shape \(3, 5, 2\), expected \('any', 'any'\)"):
        silu_mul(randn(3, 5, 2))
    with pytest.raises(AssertionError, match="gate_up has 5 columns"):
        silu_mul_cpu(torch.zeros(3, 5))
    with pytest.raises(AssertionError, match="float16 is not float32"):
        silu_mul_cpu(torch.zeros(3, 6).half())
    with pytest.raises(AssertionError, match=r"strides \(1, 3\)"):
        silu_mul_cpu(torch.zeros(6, 3).T)
