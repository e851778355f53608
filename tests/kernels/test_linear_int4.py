import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minipaged.kernels.linear_int4 import GROUP, linear_int4_cpu, linear_int4_spec, quantize_int4, unpack_spec
from minipaged.kernels.linear_int4_triton import linear_int4
from minipaged.kernels.linear_int8_triton import Tiles
from tests.kernels.guard import DEVICE, assert_close, guarded, makes, randn

MAKES = makes(linear_int4, linear_int4_cpu)


def make(num_rows, outputs, groups, dtype=torch.float32):
    x = randn(num_rows, groups * GROUP + 3, dtype=dtype)[:, : groups * GROUP]
    weight = randn(outputs, groups * GROUP) * torch.rand(outputs, 1, device=DEVICE)
    return x, *quantize_int4(weight, dtype)


@given(st.integers(1, 9), st.integers(1, 4), st.integers(0, 9))
def test_a_weight_is_found_again_within_half_a_step(outputs, groups, seed):
    weight = torch.randn(outputs, groups * GROUP, generator=torch.Generator().manual_seed(seed))
    weight[0, :GROUP] = 0.25
    codes, scale, low = quantize_int4(weight, torch.float32)
    error = (unpack_spec(codes, scale, low) - weight).abs().unflatten(1, (-1, GROUP))
    assert (error <= 0.501 * scale[:, :, None]).all()
    assert (codes.shape, scale.shape, low.shape) == ((outputs, groups * 16), (outputs, groups), (outputs, groups))


@given(st.integers(1, 9), st.integers(1, 4), st.integers(0, 9))
def test_weights_on_such_a_grid_are_found_again_as_they_were(outputs, groups, seed):
    """As those of a Q4_1 file are, in groups that use both ends."""
    generator = torch.Generator().manual_seed(seed)
    steps = torch.randint(16, (outputs, groups, GROUP), generator=generator)
    steps[:, :, 7], steps[:, :, 30] = 0, 15
    scale = torch.rand(outputs, groups, 1, generator=generator).half().float()
    low = torch.randn(outputs, groups, 1, generator=generator).half().float()
    weight = (steps * scale + low).flatten(1)
    torch.testing.assert_close(unpack_spec(*quantize_int4(weight, torch.float32)), weight, rtol=1e-6, atol=1e-6)


@given(st.integers(0, 40), st.sampled_from([1, 7, 40]), st.sampled_from([1, 2, 5]), st.sampled_from(MAKES))
@settings(max_examples=12)
def test_the_product_is_that_of_the_weights_on_their_grid(num_rows, outputs, groups, make_and_dtype):
    product, dtype = make_and_dtype
    x, codes, scale, low = make(num_rows, outputs, groups, dtype)
    exact = x.float() @ unpack_spec(codes, scale, low).T
    assert_close(guarded(product, x, codes, scale, low), exact, largest=8 * (groups * GROUP) ** 0.5)
    assert_close(linear_int4_spec(x, codes, scale, low), exact, largest=8 * (groups * GROUP) ** 0.5)


def test_many_tiles_of_rows_share_their_columns():
    x, *matrix = make(131, 20, 2)
    out = guarded(linear_int4, x, *matrix, Tiles(16, 16, 64, 4, 2))
    assert_close(out, linear_int4_spec(x, *matrix), largest=64)


@pytest.mark.skipif(DEVICE != "cpu", reason="tiles are a CPU's")
def test_a_large_matrix_is_unpacked_tile_by_tile(monkeypatch):
    monkeypatch.setattr("minipaged.kernels.linear_int4.TILE", 700)  # 7 rows of 96, and a last tile that is smaller
    x, *matrix = make(20, 70, 3)
    assert_close(guarded(linear_int4_cpu, x, *matrix), linear_int4_spec(x, *matrix), largest=64)


def test_what_is_no_number_stays_in_its_own_row():
    for product, dtype in MAKES:
        x, *matrix = make(20, 8, 1, dtype)
        x[3, 5] = torch.nan
        out = guarded(product, x, *matrix)
        assert out[3].isnan().all()
        assert out[:3].isfinite().all()
        assert out[4:].isfinite().all()


def test_what_does_not_fit_is_refused_by_name():
    x, codes, scale, low = make(2, 4, 2)
    with pytest.raises(ValueError, match="x has 40 columns, expected a multiple of 32"):
        linear_int4(x[:, :40], codes, scale, low)
    with pytest.raises(ValueError, match=r"codes has shape \(4, 31\), expected \(4, 32\)"):
        linear_int4(x, codes[:, :31], scale, low)
    with pytest.raises(ValueError, match=r"low has shape \(4, 1\), expected \(4, 2\)"):
        linear_int4(x, codes, scale, low[:, :1])
    with pytest.raises(AssertionError, match="int8 is not uint8"):
        linear_int4_cpu(x.cpu(), codes.cpu().to(torch.int8), scale.cpu(), low.cpu())
