import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minipaged.kernels.rms_norm import add_rms_norm, add_rms_norm_spec, rms_norm, rms_norm_spec
from tests.kernels.guard import DTYPES, assert_close, guarded, randn

EPS = 1e-5
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)


@given(st.integers(0, 9), st.integers(1, 5), st.sampled_from([1, 2, 16, 80, 128, 576, 1025]), st.sampled_from(DTYPES))
@settings(max_examples=40)
def test_every_row_of_any_size_is_divided_by_its_root_mean_square(num_tokens, num_heads, size, dtype):
    fused = randn(num_tokens, num_heads + 3, size + 8, dtype=dtype)
    x, weight = fused[:, 1 : num_heads + 1, :size], randn(size, dtype=dtype, seed=1)  # strided, as a slice of qkv is
    assert_close(guarded(rms_norm, x, weight, EPS), rms_norm_spec(x.float(), weight.float(), EPS), largest=16)


@given(st.integers(0, 5), st.sampled_from([1, 24, 576, 1025]), st.sampled_from(DTYPES))
@settings(max_examples=20)
def test_with_a_residual_the_sum_is_normed_and_returned(num_tokens, size, dtype):
    x = randn(num_tokens, size + 8, dtype=dtype)[:, :size]
    residual, weight = randn(num_tokens, size, dtype=dtype, seed=1), randn(size, dtype=dtype, seed=2)
    out, total = guarded(add_rms_norm, x, residual, weight, EPS)
    assert torch.equal(total, x + residual)
    assert_close(out, rms_norm_spec(total.float(), weight.float(), EPS), largest=16)


@dtypes
def test_adding_on_the_way_gives_the_numbers_of_adding_before(dtype):
    x, residual = (randn(5, 96, dtype=dtype, seed=seed) for seed in range(2))
    weight = randn(96, dtype=dtype, seed=2)
    out, total = guarded(add_rms_norm, x, residual, weight, EPS)
    assert torch.equal(out, guarded(rms_norm, total, weight, EPS))
    assert_close(out, add_rms_norm_spec(x, residual, weight, EPS)[0], largest=16)


def test_a_row_of_zeros_stays_zero_and_nan_stays_in_its_row():
    x, weight = randn(3, 32), randn(32, seed=1)
    x[0], x[1] = 0, float("nan")
    out = guarded(rms_norm, x, weight, EPS)
    assert (out[0] == 0).all()
    assert out[1].isnan().all()
    assert_close(out[2], rms_norm_spec(x[2], weight, EPS), largest=16)


def test_what_does_not_fit_is_refused_by_name():
    x, weight = randn(3, 32), randn(32)
    with pytest.raises(ValueError, match=r"weight has shape \(31,\), expected \(32,\)"):
        rms_norm(x, weight[:31], EPS)
    with pytest.raises(ValueError, match=r"weight is torch.float16, expected torch.float32"):
        rms_norm(x, weight.half(), EPS)
    with pytest.raises(ValueError, match="x has stride 3 in its last axis, expected 1"):
        rms_norm(x.T.contiguous().T, weight, EPS)
    with pytest.raises(ValueError, match="residual has shape"):
        add_rms_norm(x, x[:2], weight, EPS)
