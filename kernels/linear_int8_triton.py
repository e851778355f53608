"""y[t, n] = scale[n] * sum over k of codes[n, k] x[t, k]: weights of 8 bits, and a scale for each of their rows.

The same as `linear_int8_spec` in linear_int8.py, on a GPU, for x as it is: codes become x's numbers on their way from
memory to the matrix units, which loses nothing, as 8 bits fit into bfloat16's 8. Codes may be int8 or float8_e4m3: what
changes is what a byte means.

    program   BT rows of x  by  BN rows of codes: acc [BT, BN] += x [BT, BK] . codes [BN, BK] ^ T, over all K
    rows      few (a decode): tiles are narrow, so that there are enough programs to ask for memory everywhere
              many (a prompt): GROUP tiles of rows go through the same columns while these are in the cache

The scale comes last, once for each result. Sums are float32. Invariant: no row or column outside is read or written;
offsets into the codes are 64 bits wide."""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .expect import OPTIONS, expect

GROUP = 8  # tiles of rows that share the same columns of a matrix while these are in the cache


@triton.jit
def linear_int8_kernel(
    p_x, p_codes, p_scale, p_out, x_t, codes_n, num_rows, num_columns, size,
    GROUP: tl.constexpr, BT: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """out [num_rows, num_columns] from x [num_rows, size] and codes [num_columns, size]."""
    in_group = tl.program_id(0) % (GROUP * tl.cdiv(num_columns, BN))
    tile = tl.program_id(0) // (GROUP * tl.cdiv(num_columns, BN)) * GROUP + in_group % GROUP
    o_t, o_n = tile * BT + tl.arange(0, BT), in_group // GROUP * BN + tl.arange(0, BN)  # [BT], [BN]
    m_t, m_n = (o_t < num_rows)[:, None], o_n < num_columns
    p_row = p_x + (o_t.to(tl.int64) * x_t)[:, None]  # [BT, 1]
    p_code = p_codes + (o_n.to(tl.int64) * codes_n)[:, None]  # [BN, 1]
    o_k = tl.arange(0, BK)[None, :]  # [1, BK]
    acc = tl.zeros([BT, BN], tl.float32)
    for k in range(0, size, BK):
        m_k = k + o_k < size
        b_x = tl.load(p_row + k + o_k, mask=m_t & m_k, other=0.0)  # [BT, BK]
        b_code = tl.load(p_code + k + o_k, mask=m_n[:, None] & m_k, other=0.0)  # [BN, BK]
        acc = tl.dot(b_x, tl.trans(b_code.to(b_x.dtype)), acc, input_precision="ieee")
    b_scale = tl.load(p_scale + o_n, mask=m_n, other=0.0)
    o_out = o_t.to(tl.int64)[:, None] * num_columns + o_n[None, :]
    tl.store(p_out + o_out, acc * b_scale[None, :], mask=m_t & m_n[None, :])


class Tiles(NamedTuple):
    """How a launch is cut: rows of x, rows of codes and numbers of each at a time; warps and stages are Triton's."""

    rows: int
    columns: int
    inputs: int
    warps: int
    stages: int


def linear_int8(x: Tensor, codes: Tensor, scale: Tensor, tiles: Tiles | None = None) -> Tensor:
    """x [T, K], codes [N, K] int8 or float8_e4m3fn, scale [N] float32 -> [T, N]"""
    expect("x", x, (None, None), like=x)
    expect("codes", codes, (None, x.shape[1]), like=x, dtype=codes.dtype)
    if codes.dtype not in (torch.int8, torch.float8_e4m3fn):
        raise ValueError(f"codes is {codes.dtype}, expected torch.int8 or torch.float8_e4m3fn")
    (T, K), N = x.shape, len(codes)
    expect("scale", scale, (N,), like=x, dtype=torch.float32)
    out = torch.empty(T, N, dtype=x.dtype, device=x.device)
    if out.numel():
        cut = tiles or choose_tiles(T, x.dtype)
        num_tiles = triton.cdiv(T, cut.rows)
        group = min(GROUP, num_tiles)
        num_programs = triton.cdiv(num_tiles, group) * group * triton.cdiv(N, cut.columns)
        linear_int8_kernel[(num_programs,)](
            x, codes, scale, out, x.stride(0), codes.stride(0), T, N, K, GROUP=group,
            BT=cut.rows, BN=cut.columns, BK=cut.inputs, num_warps=cut.warps, num_stages=cut.stages, **OPTIONS,
        )  # fmt: skip
    return out


def choose_tiles(num_rows: int, dtype: torch.dtype) -> Tiles:
    """From the 16 rows that matrix units want to 128."""
    rows = min(128, max(16, triton.next_power_of_2(num_rows)))
    if dtype == torch.float32:
        return Tiles(min(32, rows), columns=32, inputs=32, warps=4, stages=2)
    if rows <= 32:
        return Tiles(rows, columns=32, inputs=128, warps=4, stages=4)
    return Tiles(rows, columns=128, inputs=64, warps=8 if rows > 64 else 4, stages=3)
