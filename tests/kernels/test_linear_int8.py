import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minipaged.kernels import linear_int8 as module
from minipaged.kernels.linear_int8 import (
    LARGEST_CODE,
    LARGEST_Q,
    STRETCH,
    has_exact_product,
    linear_int8_cpu,
    linear_int8_spec,
    quantize_int8,
    round_spec,
)
from minipaged.kernels.linear_int8_triton import Tiles, linear_int8
from tests.kernels.guard import DEVICE, DTYPES, assert_close, guarded, on_threads

on_a_cpu = pytest.mark.skipif(DEVICE != "cpu", reason="the loops are a CPU's")
WAYS = {"with VNNI": True, "without": False}
shapes = given(st.integers(0, 40), st.integers(1, 70), st.sampled_from([1, 8, 63, 64, 130, 576]), st.integers(0, 9))


@pytest.fixture(params=WAYS)
def way(request, monkeypatch):
    if WAYS[request.param] and not has_exact_product():
        pytest.skip("this CPU has no VNNI")
    monkeypatch.setattr(module, "has_exact_product", lambda: WAYS[request.param])


def make(num_rows, outputs, inputs, seed, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(num_rows, inputs + 3, generator=generator)[:, :inputs].to(DEVICE, dtype)
    weight = torch.randn(outputs, inputs, generator=generator) * torch.rand(outputs, 1, generator=generator)
    return x, *(part.to(DEVICE) for part in quantize_int8(weight))


def exact(x, codes, scale):
    """What a CPU is to compute: whole numbers until the end."""
    q, step = round_spec(x)
    return ((q.long() @ codes.long().T).double() * step[:, None] * scale).float()


@given(st.integers(1, 40), st.integers(1, 70), st.integers(0, 9))
def test_a_code_is_within_half_a_step_of_its_weight(outputs, inputs, seed):
    weight = torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(seed))
    weight[0] = 0
    codes, scale = quantize_int8(weight)
    assert ((codes * scale[:, None] - weight).abs() <= 0.501 * scale[:, None]).all()
    assert codes[1:].abs().amax(1).eq(LARGEST_CODE).all()
    assert not codes[0].any()


@shapes
@settings(max_examples=12)
def test_the_kernel_gives_what_the_specification_gives(num_rows, outputs, inputs, seed):
    for dtype in DTYPES:
        x, codes, scale = make(num_rows, outputs, inputs, seed, dtype)
        out = guarded(linear_int8, x, codes, scale)
        assert_close(out, linear_int8_spec(x.float(), codes, scale), largest=4 * inputs**0.5)


def test_many_tiles_of_rows_share_their_columns():
    x, codes, scale = make(131, 20, 40, 0)
    out = guarded(linear_int8, x, codes, scale, Tiles(16, 16, 32, 4, 2))
    assert_close(out, linear_int8_spec(x, codes, scale), largest=24)


@on_a_cpu
@shapes
@settings(max_examples=30)
@pytest.mark.usefixtures("way")
def test_a_cpu_gives_the_exact_sums_of_what_it_rounded(num_rows, outputs, inputs, seed):
    x, codes, scale = make(num_rows, outputs, inputs, seed)
    for threads in (1, 3):
        out = guarded(on_threads, threads, linear_int8_cpu, x, codes, scale)
        torch.testing.assert_close(out, exact(x, codes, scale), rtol=1e-3, atol=1e-3)  # a tie may be rounded either way
        error = (out - linear_int8_spec(x, codes, scale)).norm() / out.norm().clamp(min=1e-9)
        assert num_rows == 0 or error < 1e-3


@on_a_cpu
def test_a_row_is_the_same_to_the_last_bit_alone_and_in_company():
    x, codes, scale = make(40, 70, 576, 1)
    together = linear_int8_cpu(x, codes, scale)
    for threads in (1, 2, 3):
        for size in (1, 2, 17):
            parts = [on_threads(threads, linear_int8_cpu, part, codes, scale) for part in x.split(size)]
            if has_exact_product() or size == 1:
                assert torch.equal(torch.cat(parts), together) or not has_exact_product()


@on_a_cpu
@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("sign", [-1, 1])
def test_the_largest_numbers_overflow_nowhere(sign):
    """STRETCH products of the largest code and the largest q, and two stretches of them."""
    assert STRETCH * LARGEST_CODE * LARGEST_Q < 2**31
    codes, scale = torch.full((3, 2 * STRETCH), sign * LARGEST_CODE, dtype=torch.int8), torch.ones(3)
    for num_rows in (1, 33):
        out = linear_int8_cpu(torch.full((num_rows, 2 * STRETCH), 2.0), codes, scale)
        torch.testing.assert_close(out, torch.full_like(out, sign * 2.0 * LARGEST_CODE * 2 * STRETCH))


@on_a_cpu
@pytest.mark.usefixtures("way")
def test_what_is_no_number_spoils_its_own_row_and_zeros_are_zeros():
    x, codes, scale = make(40, 8, 16, 2)
    x[3, 5], x[4, 0], x[5], x[6] = torch.nan, -torch.inf, 0.0, 1e-38
    with np.errstate(invalid="ignore"):
        outs = [linear_int8_cpu(x, codes, scale), torch.cat([linear_int8_cpu(row, codes, scale) for row in x.split(1)])]
    for out in outs:
        assert out[3:5].isnan().all()
        assert not out[5:7].any()
        torch.testing.assert_close(out[7:], exact(x[7:], codes, scale), rtol=1e-3, atol=1e-3)


def test_what_does_not_fit_is_refused_by_name():
    x, codes, scale = make(2, 4, 16, 0)
    with pytest.raises(ValueError, match=r"codes has shape \(4, 15\), expected \('any', 16\)"):
        linear_int8(x, codes[:, :15], scale)
    with pytest.raises(ValueError, match=r"codes is torch.float32, expected torch.int8"):
        linear_int8(x, codes.float(), scale)
    with pytest.raises(ValueError, match=r"scale has shape \(3,\), expected \(4,\)"):
        linear_int8(x, codes, scale[:3])
    with pytest.raises(AssertionError, match="uint8 is not int8"):
        linear_int8_cpu(x.cpu(), codes.cpu().to(torch.uint8), scale.cpu())
    with pytest.raises(AssertionError, match=r"strides \(1, 16\)"):
        linear_int8_cpu(x.cpu()[:, :4], codes.cpu()[:, :4].T, scale.cpu())
