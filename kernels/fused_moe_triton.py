"""out[a] = down[e] (silu(gate[e] x) * up[e] x), with e the expert of row a and x the token that row a is about.

The same as `fused_moe_spec` in fused_moe.py, on a GPU: two launches of one grouped product. The first gathers its rows
from the tokens and opens the gate before it stores; the second reads what the first stored.

    rows, sorted    [ 1 2 5 | | 0 3 | 4 ]       BR = 2: tiles [1 2] [5 .] [0 3] [4 .]
    starts          [ 0     3 3     5   6 ]      tiles of each expert 2, 0, 1, 1; summed up 2, 2, 3, 4

How many rows an expert has, only the GPU knows, and to ask would mean to wait. So as many programs are started as there
could be tiles at most, and each finds its expert in `starts`: it is the first whose tiles, summed up, exceed its own
number; a program beyond the last tile ends at once. A program multiplies BR rows with BN of its expert's outputs:

    acc [BR, BN] += rows [BR, BM] . weights [BN, BM] ^ T      over all M, BM at a time; gated, two of them, gate and up

Programs run in groups of GROUP tiles, one column after the other, so that a group's rows and its expert's matrices are
read from the cache by all. Sums are float32; rounded once to store. Invariants: no row outside starts is read or
written; offsets into the matrices are 64 bits wide."""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .expect import OPTIONS, expect

GROUP = 8  # tiles of rows that share the same columns of a matrix while these are in the cache


@triton.jit
def grouped_product_kernel(
    p_x, p_weight, p_sources, p_starts, p_out, x_t, weight_e, weight_n, num_experts, num_columns, size,
    GATED: tl.constexpr, GROUP: tl.constexpr,
    BE: tl.constexpr, BR: tl.constexpr, BN: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """out [A, num_columns] from x [T, size] and weight [E, (2) num_columns, size]; gated, rows are x[sources]."""
    in_group = tl.program_id(0) % (GROUP * tl.cdiv(num_columns, BN))
    tile = tl.program_id(0) // (GROUP * tl.cdiv(num_columns, BN)) * GROUP + in_group % GROUP
    expert, row, end = find_rows(p_starts, tile, num_experts, BE, BR)
    if expert >= num_experts:
        return
    o_row, o_n = row + tl.arange(0, BR), in_group // GROUP * BN + tl.arange(0, BN)  # [BR], [BN]
    m_row, m_n = o_row < end, o_n < num_columns
    o_source = tl.load(p_sources + o_row, mask=m_row, other=0) if GATED else o_row
    p_rows = p_x + (o_source * x_t)[:, None]  # [BR, 1]
    p_expert = p_weight + expert.to(tl.int64) * weight_e
    p_gate = p_expert + (o_n.to(tl.int64) * weight_n)[:, None]  # [BN, 1]
    p_up = p_expert + ((o_n.to(tl.int64) + num_columns) * weight_n)[:, None]
    gate, up = multiply(p_rows, p_gate, p_up, m_row[:, None], m_n[:, None], size, GATED, BR, BN, BM)
    out = gate * tl.sigmoid(gate) * up if GATED else gate
    o_out = o_row[:, None] * num_columns + o_n[None, :]
    tl.store(p_out + o_out, out, mask=m_row[:, None] & m_n[None, :])


@triton.jit
def multiply(
    p_rows, p_gate, p_up, m_row, m_n, size, GATED: tl.constexpr, BR: tl.constexpr, BN: tl.constexpr, BM: tl.constexpr
):  # fmt: skip
    """Rows [BR, size] times gate and, gated, times up [BN, size]: two results [BR, BN]."""
    o_m = tl.arange(0, BM)[None, :]  # [1, BM]
    gate, up = tl.full([BR, BN], 0.0, tl.float32), tl.full([BR, BN], 0.0, tl.float32)
    for m in range(0, size, BM):
        m_m = m + o_m < size
        b_x = tl.load(p_rows + m + o_m, mask=m_row & m_m, other=0.0)  # [BR, BM]
        b_gate = tl.load(p_gate + m + o_m, mask=m_n & m_m, other=0.0)  # [BN, BM]
        gate = tl.dot(b_x, tl.trans(b_gate), gate, input_precision="ieee")
        if GATED:
            b_up = tl.load(p_up + m + o_m, mask=m_n & m_m, other=0.0)
            up = tl.dot(b_x, tl.trans(b_up), up, input_precision="ieee")
    return gate, up


@triton.jit
def find_rows(p_starts, tile, num_experts, BE: tl.constexpr, BR: tl.constexpr):
    """-> expert, first row, end of the expert's rows; beyond the last tile an expert that does not exist."""
    o_e = tl.arange(0, BE)
    m_e = o_e < num_experts
    b_start, b_end = tl.load(p_starts + o_e, mask=m_e, other=0), tl.load(p_starts + o_e + 1, mask=m_e, other=0)
    b_tiles = (b_end - b_start + BR - 1) // BR  # [BE]
    b_after = tl.cumsum(b_tiles, axis=0)
    expert = tl.sum((b_after <= tile).to(tl.int32), axis=0)
    mine = o_e == expert
    before = tl.sum(tl.where(mine, b_after - b_tiles, 0), axis=0)
    row = tl.sum(tl.where(mine, b_start, 0), axis=0) + (tile - before) * BR
    return expert, row, tl.sum(tl.where(mine, b_end, 0), axis=0)


class Tiles(NamedTuple):
    """How a launch is cut: rows, outputs and inputs at a time; warps and stages are Triton's."""

    rows: int
    columns: int
    inputs: int
    warps: int
    stages: int


def fused_moe(
    x: Tensor, gate_up: Tensor, down: Tensor, sources: Tensor, starts: Tensor, tiles: Tiles | None = None
) -> Tensor:
    """x [T, M], gate_up [E, 2 F, M], down [E, M, F], sources [A], starts [E + 1] -> [A, M]"""
    check(x, gate_up, down, sources, starts)
    (A,), (E, M, F) = sources.shape, down.shape
    gated = torch.empty(A, F, dtype=x.dtype, device=x.device)
    out = torch.empty(A, M, dtype=x.dtype, device=x.device)
    if out.numel():
        tiles = tiles or choose_tiles(A, E, x.dtype)
        launch(x, gate_up, sources, starts, gated, tiles)
        launch(gated, down, None, starts, out, tiles)
    return out


def check(x: Tensor, gate_up: Tensor, down: Tensor, sources: Tensor, starts: Tensor) -> None:
    """Raises ValueError with the name of whatever does not fit the others."""
    expect("x", x, (None, None), like=x)
    M = x.shape[1]
    expect("down", down, (None, M, None), like=x)
    E, _, F = down.shape
    expect("gate_up", gate_up, (E, 2 * F, M), like=x)
    expect("sources", sources, (None,), like=x, dtype=torch.int64)
    expect("starts", starts, (E + 1,), like=x, dtype=torch.int64)


def launch(x: Tensor, weight: Tensor, sources: Tensor | None, starts: Tensor, out: Tensor, tiles: Tiles) -> None:
    """With sources, gated; without, rows are those of x."""
    (A, num_columns), E = out.shape, len(weight)
    most = min(A, A // tiles.rows + E)  # tiles: one more for each expert than its rows fill, at most one a row
    columns = tiles.columns // 2 if sources is not None else tiles.columns
    num_programs = triton.cdiv(most, GROUP) * GROUP * triton.cdiv(num_columns, columns)
    grouped_product_kernel[(num_programs,)](
        x, weight, sources, starts, out, x.stride(0), *weight.stride()[:2], E, num_columns, x.shape[1],
        GATED=sources is not None, GROUP=GROUP, BE=triton.next_power_of_2(E),
        BR=tiles.rows, BN=columns, BM=tiles.inputs, num_warps=tiles.warps, num_stages=tiles.stages, **OPTIONS,
    )  # fmt: skip


def choose_tiles(num_rows: int, num_experts: int, dtype: torch.dtype) -> Tiles:
    """As many rows as an expert has on average, from the 16 that matrix units want to 128."""
    each = triton.next_power_of_2(max(1, num_rows // num_experts))
    if dtype == torch.float32:
        return Tiles(min(32, max(16, each)), columns=64, inputs=32, warps=4, stages=2)
    rows = min(128, max(16, each))
    return Tiles(rows, columns=128, inputs=64, warps=8 if rows > 64 else 4, stages=3)
