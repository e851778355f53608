import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minipaged.kernels.rms_norm import add_rms_norm_cpu, add_rms_norm_spec, rms_norm_cpu, rms_norm_spec
from minipaged.kernels.rms_norm_triton import add_rms_norm, rms_norm
from tests.kernels.guard import assert_close, guarded, makes, randn

EPS = 1e-5
MAKES, ADDING = makes(rms_norm, rms_norm_cpu), makes(add_rms_norm, add_rms_norm_cpu)
SIZES = st.sampled_from([1, 2, 16, 80, 128, 576, 1025])


@given(st.integers(0, 9), st.integers(1, 5), SIZES, st.sampled_from(MAKES))
@settings(max_examples=30)
def test_every_row_of_any_size_is_divided_by_its_root_mean_square(num_tokens, num_heads, size, make):
    rms_norm, dtype = make
    fused = randn(num_tokens, num_heads + 3, size + 8, dtype=dtype)
    x, weight = fused[:, 1 : num_heads + 1, :size], randn(size, dtype=dtype, seed=1)  # strided, as a slice of qkv is
    assert_close(guarded(rms_norm, x, weight, EPS), rms_norm_spec(x.float(), weight.float(), EPS), largest=16)


@given(st.integers(0, 5), st.sampled_from([1, 24, 576, 1025]), st.sampled_from(ADDING))
@settings(max_examples=30)
def test_with_a_residual_the_sum_is_normed_and_returned(num_tokens, size, make):
    add_rms_norm, dtype = make
    x = randn(num_tokens, size + 8, dtype=dtype)[:, :size]
    residual, weight = randn(num_tokens, size, dtype=dtype, seed=1), randn(size, dtype=dtype, seed=2)
    out, total = guarded(add_rms_norm, x, residual, weight, EPS)
    assert torch.equal(total, x + residual)
    assert_close(out, rms_norm_spec(total.float(), weight.float(), EPS), largest=16)


@pytest.mark.parametrize(("make", "adding"), list(zip(MAKES, ADDING, strict=True)))
def test_adding_on_the_way_gives_the_numbers_of_adding_before(make, adding):
    (rms_norm, dtype), (add_rms_norm, _) = make, adding
    x, residual = (randn(5, 96, dtype=dtype, seed=seed) for seed in range(2))
    weight = randn(96, dtype=dtype, seed=2)
    out, total = guarded(add_rms_norm, x, residual, weight, EPS)
    assert torch.equal(out, guarded(rms_norm, total, weight, EPS))
    assert_close(out, add_rms_norm_spec(x, residual, weight, EPS)[0], largest=16)


@pytest.mark.parametrize("make", [make for make, dtype in MAKES if dtype == torch.float32])
def test_a_row_of_zeros_stays_zero_and_nan_stays_in_its_row(make):
    x, weight = randn(4, 32), randn(32, seed=1)
    x[0], x[1], x[2, 5] = 0, float("nan"), float("nan")
    out = guarded(make, x, weight, EPS)
    assert (out[0] == 0).all()
    assert out[1:3].isnan().all()
    assert_close(out[3], rms_norm_spec(x[3], weight, EPS), largest=16)


@pytest.mark.parametrize("size", [1, 24, 576, 1025, 4096])
def test_the_cpu_twin_is_as_exact_as_its_first_page_says(size):
    x, residual, weight = (randn(9, size, seed=seed).cpu() for seed in range(3))
    out, total = add_rms_norm_cpu(x, residual, weight[0], EPS)
    exact = total.double()
    exact = weight[0].double() * exact / (exact.square().mean(-1, keepdim=True) + EPS).sqrt()
    assert ((out - exact).abs() <= 3e-7 * exact.abs()).all()


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
    x, weight = torch.zeros(3, 32), torch.zeros(32)
    with pytest.raises(AssertionError, match=r"weight torch.Size\(\[31\]\)"):
        rms_norm_cpu(x, weight[:31], EPS)
    with pytest.raises(AssertionError, match="float16 is not float32"):
        rms_norm_cpu(x, weight.half(), EPS)
    with pytest.raises(AssertionError, match=r"strides \(1, 96, 3\)"):
        rms_norm_cpu(x.T.contiguous().T, weight, EPS)
    with pytest.raises(AssertionError, match="residual"):
        add_rms_norm_cpu(x, x[:2], weight, EPS)
