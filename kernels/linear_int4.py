"""y[t, n] = sum over k of (scale[n, g] codes[n, k] + low[n, g]) x[t, k], g = k / 32: weights of 4 bits, in groups.

    32 weights of a row, from their lowest to their highest      16 bytes, and two numbers

    low              low + 15 scale          scale = (highest - low) / 15
     |--+--+--+--+-- ... --+--|              byte j: code j in its low half, code j + 16 in its high half
     0  1  2  3            15

With one scale for all of a row 16 steps would be too few, and so would be steps about zero: groups seldom lie there.
(GGUF's Q4_1 is the same grid: what comes from such a file is found again, but for groups that do not use both ends.)

A CPU makes floats of a row's codes, in its nearest cache, for all rows of x at once; where x has many, of a tile of
rows, and torch multiplies. (On a GPU: linear_int4_triton.py.)"""

import numpy as np
import torch
from numba import prange
from numpy.typing import NDArray
from torch import Tensor

from .jit import Floats, Thread, compiled, flat, num_threads, share_of

Bytes = NDArray[np.uint8]

GROUP, HALF = 32, 16
FEW = 16  # rows for which the loops are faster than tiles
TILE = 1 << 20  # weights that are floats at the same time
ZERO = np.float32(0)


def quantize_int4(weight: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """weight [N, K] -> codes [N, K / 2] uint8; scale and low [N, K / 32], of this dtype"""
    groups = weight.float().unflatten(1, (-1, GROUP))  # [N, K / 32, 32]
    lowest, highest = groups.aminmax(dim=2)
    scale, low = ((highest - lowest) / 15).to(dtype), lowest.to(dtype)
    steps = scale.float().masked_fill(scale == 0, 1)[:, :, None]
    codes = ((groups - low.float()[:, :, None]) / steps).round().clamp(0, 15).to(torch.uint8)
    return (codes[:, :, :HALF] | codes[:, :, HALF:] << 4).flatten(1), scale, low


def unpack_spec(codes: Tensor, scale: Tensor, low: Tensor) -> Tensor:
    """codes [N, K / 2], scale and low [N, K / 32] -> weights [N, K], float32"""
    halves = codes.unflatten(1, (-1, HALF))  # [N, K / 32, 16]
    steps = torch.cat((halves & 15, halves >> 4), dim=2)  # [N, K / 32, 32]
    return (steps * scale.float()[:, :, None] + low.float()[:, :, None]).flatten(1)


def linear_int4_spec(x: Tensor, codes: Tensor, scale: Tensor, low: Tensor) -> Tensor:
    """x [T, K], codes [N, K / 2], scale and low [N, K / 32] -> [T, N]"""
    return (x.float() @ unpack_spec(codes, scale, low).T).to(x.dtype)


def linear_int4_cpu(x: Tensor, codes: Tensor, scale: Tensor, low: Tensor) -> Tensor:
    """The same, on float32 tensors of a CPU."""
    (T, K), N = x.shape, len(codes)
    shapes = codes.shape, scale.shape, low.shape
    assert shapes == ((N, K // 2), (N, K // GROUP), (N, K // GROUP)), f"x {x.shape}, codes, scale and low {shapes}"
    assert codes.dtype == torch.uint8, f"{codes.dtype} is not uint8"
    assert all(part.is_contiguous() for part in (codes, scale, low)), "codes, scale or low are strided"
    out, grid = torch.empty(T, N), (scale.numpy(), low.numpy())
    if T <= FEW:
        multiply_all(flat(x), x.stride(0), codes.numpy(), grid, out.numpy(), num_threads(codes.numel()))
        return out
    tile = torch.empty(min(N, max(1, TILE // K)), K)
    for n in range(0, N, len(tile)):
        rows = min(len(tile), N - n)
        unpack_all(codes.numpy(), grid, n, tile.numpy()[:rows], num_threads(rows * K))
        torch.mm(x, tile[:rows].T, out=out[:, n : n + rows])
    return out


@compiled(parallel=True)
def multiply_all(x: Floats, x_t: int, codes: Bytes, grid: tuple[Floats, Floats], out: Floats, threads: int) -> None:
    if threads == 1:
        multiply_share(x, x_t, codes, grid, out, np.int64(0), threads)
    else:
        for thread in prange(threads):
            multiply_share(x, x_t, codes, grid, out, np.int64(thread), threads)


@compiled()
def multiply_share(
    x: Floats, x_t: int, codes: Bytes, grid: tuple[Floats, Floats], out: Floats, thread: Thread, threads: int
) -> None:
    """A thread's columns of out [T, N]; rows of x are x_t apart."""
    size = 2 * codes.shape[1]
    weights = np.empty((1, size), np.float32)
    start, end = share_of(len(codes), thread, threads)
    for n in range(start, end):
        unpack_row(codes, grid, n, weights, 0)
        for t in range(len(out)):
            row, total = x[t * x_t : t * x_t + size], ZERO
            for k in range(size):
                total += row[k] * weights[0, k]
            out[t, n] = total


@compiled(parallel=True)
def unpack_all(codes: Bytes, grid: tuple[Floats, Floats], first: int, weights: Floats, threads: int) -> None:
    """Rows of codes from the first on into weights [rows, K]."""
    if threads == 1:
        unpack_share(codes, grid, first, weights, np.int64(0), threads)
    else:
        for thread in prange(threads):
            unpack_share(codes, grid, first, weights, np.int64(thread), threads)


@compiled()
def unpack_share(
    codes: Bytes, grid: tuple[Floats, Floats], first: int, weights: Floats, thread: Thread, threads: int
) -> None:
    start, end = share_of(len(weights), thread, threads)
    for row in range(start, end):
        unpack_row(codes, grid, first + row, weights, row)


@compiled()
def unpack_row(codes: Bytes, grid: tuple[Floats, Floats], n: int, weights: Floats, row: int) -> None:
    """Row n of codes [N, K / 2], with its scale and low [N, K / 32], into a row of weights."""
    scale, low = grid
    for group in range(scale.shape[1]):
        step, lowest = scale[n, group], low[n, group]
        some = codes[n, group * HALF : (group + 1) * HALF]
        out = weights[row, group * GROUP : (group + 1) * GROUP]
        for j in range(HALF):  # two loops: one that does both is slower
            out[j] = np.float32(some[j] & 15) * step + lowest
        for j in range(HALF):
            out[HALF + j] = np.float32(some[j] >> 4) * step + lowest
