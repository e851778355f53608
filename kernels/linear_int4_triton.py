"""y[t, n] = sum over k of (scale[n, g] codes[n, k] + low[n, g]) x[t, k], g = k / 32: weights of 4 bits, in groups.

The same as `linear_int4_spec` in linear_int4.py, on a GPU. A byte has the codes of two weights that are 16 apart, so a
tile of bytes meets two tiles of x, and nothing has to be put back in order:

    bytes      [ b0 .. b15 | b0 .. b15 | ... ]        a group, the next, ...
    low half     k0 .. k15   k32 .. k47               acc += x at these . their weights ^ T
    high half    k16 .. k31  k48 .. k63               acc += x at those . their weights ^ T

A weight is made in float32, rounded to x's dtype and multiplied there; sums are float32. Programs and tiles are those
of linear_int8_triton.py. Invariant: no row or column outside is read or written; offsets are 64 bits wide."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .expect import OPTIONS, expect
from .linear_int4 import GROUP as SIZE
from .linear_int4 import HALF
from .linear_int8_triton import GROUP, Tiles


@triton.jit
def linear_int4_kernel(
    p_x, p_codes, p_scale, p_low, p_out, x_t, codes_n, num_rows, num_columns, num_bytes,
    GROUP: tl.constexpr, HALF: tl.constexpr, BT: tl.constexpr, BN: tl.constexpr, BB: tl.constexpr,
):  # fmt: skip
    """out [num_rows, num_columns] from x [num_rows, 2 num_bytes] and codes [num_columns, num_bytes]."""
    in_group = tl.program_id(0) % (GROUP * tl.cdiv(num_columns, BN))
    tile = tl.program_id(0) // (GROUP * tl.cdiv(num_columns, BN)) * GROUP + in_group % GROUP
    o_t, o_n = tile * BT + tl.arange(0, BT), in_group // GROUP * BN + tl.arange(0, BN)  # [BT], [BN]
    m_t, m_n = (o_t < num_rows)[:, None], (o_n < num_columns)[:, None]
    p_row = p_x + (o_t.to(tl.int64) * x_t)[:, None]  # [BT, 1]
    p_code = p_codes + (o_n.to(tl.int64) * codes_n)[:, None]  # [BN, 1]
    o_grid = (o_n.to(tl.int64) * (num_bytes // HALF))[:, None]  # [BN, 1]
    acc = tl.zeros([BT, BN], tl.float32)
    for b in range(0, num_bytes, BB):
        o_b, o_g = (b + tl.arange(0, BB))[None, :], (b // HALF + tl.arange(0, BB // HALF))[None, :]
        o_k = o_b + o_b // HALF * HALF  # of the low half's weights
        m_b, m_g = o_b < num_bytes, o_g * HALF < num_bytes
        b_code = tl.load(p_code + o_b, mask=m_n & m_b, other=0)  # [BN, BB]
        b_scale = spread(tl.load(p_scale + o_grid + o_g, mask=m_n & m_g, other=0.0), BN, BB, HALF)
        b_low = spread(tl.load(p_low + o_grid + o_g, mask=m_n & m_g, other=0.0), BN, BB, HALF)
        acc = add_half(acc, p_row + o_k, m_t & m_b, b_code & 15, b_scale, b_low)
        acc = add_half(acc, p_row + o_k + HALF, m_t & m_b, b_code >> 4, b_scale, b_low)
    o_out = o_t.to(tl.int64)[:, None] * num_columns + o_n[None, :]
    tl.store(p_out + o_out, acc, mask=m_t & (o_n < num_columns)[None, :])


@triton.jit
def add_half(acc, p_x, mask, b_step, b_scale, b_low):
    """acc [BT, BN] + x [BT, BB] . the weights at these steps of their grids [BN, BB] ^ T"""
    b_x = tl.load(p_x, mask=mask, other=0.0)
    b_weight = (b_step.to(tl.float32) * b_scale + b_low).to(b_x.dtype)
    return tl.dot(b_x, tl.trans(b_weight), acc, input_precision="ieee")


@triton.jit
def spread(b_grid, BN: tl.constexpr, BB: tl.constexpr, HALF: tl.constexpr):
    """[BN, BB / HALF] -> [BN, BB] float32: a group's number for each of its bytes."""
    b_wide = tl.broadcast_to(b_grid.to(tl.float32)[:, :, None], [BN, BB // HALF, HALF])
    return tl.reshape(b_wide, [BN, BB])


def linear_int4(x: Tensor, codes: Tensor, scale: Tensor, low: Tensor, tiles: Tiles | None = None) -> Tensor:
    """x [T, K], codes [N, K / 2] uint8, scale and low [N, K / 32] of x's dtype -> [T, N]"""
    expect("x", x, (None, None), like=x)
    (T, K), N = x.shape, len(codes)
    if K % SIZE:
        raise ValueError(f"x has {K} columns, expected a multiple of {SIZE}")
    expect("codes", codes, (N, K // 2), like=x, dtype=torch.uint8)
    for name, grid in (("scale", scale), ("low", low)):
        expect(name, grid, (N, K // SIZE), like=x)
        if not grid.is_contiguous():
            raise ValueError(f"{name} has strides {grid.stride()}, expected rows side by side")
    out = torch.empty(T, N, dtype=x.dtype, device=x.device)
    if out.numel():
        launch(x, codes, scale, low, out, tiles or choose_tiles(T, x.dtype))
    return out


def launch(x: Tensor, codes: Tensor, scale: Tensor, low: Tensor, out: Tensor, tiles: Tiles) -> None:
    (T, N), num_tiles = out.shape, triton.cdiv(len(out), tiles.rows)
    group = min(GROUP, num_tiles)
    num_programs = triton.cdiv(num_tiles, group) * group * triton.cdiv(N, tiles.columns)
    linear_int4_kernel[(num_programs,)](
        x, codes, scale, low, out, x.stride(0), codes.stride(0), T, N, codes.shape[1], GROUP=group, HALF=HALF,
        BT=tiles.rows, BN=tiles.columns, BB=tiles.inputs // 2,
        num_warps=tiles.warps, num_stages=tiles.stages, **OPTIONS,
    )  # fmt: skip


def choose_tiles(num_rows: int, dtype: torch.dtype) -> Tiles:
    """`inputs` are weights: half as many bytes at a time."""
    rows = min(64, max(16, triton.next_power_of_2(num_rows)))
    if dtype == torch.float32:
        return Tiles(min(32, rows), columns=32, inputs=64, warps=4, stages=2)
    if rows <= 32:
        return Tiles(rows, columns=32, inputs=128, warps=4, stages=3)
    return Tiles(rows, columns=128, inputs=64, warps=8, stages=3)
