"""y[t, n] = scale[n] * sum over k of codes[n, k] x[t, k]: weights of 8 bits, and a scale for each of their rows.

    weight[n]   0.31 -0.02  0.07 ...      largest 0.31: scale[n] = 0.31 / 127
    codes[n]     127    -8    29 ...      a quarter of float32's bytes

On a CPU the sum is one of whole numbers, for which x, too, is made of some, 14 bits each:

    step[t] = max |x[t]| / 8127     q[t, k] = round(x[t, k] / step[t])     y = step[t] scale[n] (sum of codes q)

Such a sum is exact, and what is exact has no order: a row's result is the same to the last bit alone or in company, on
one thread or on many. (8 bits of x would be too few: one large number in a row leaves all
others next to none.)

    few rows     loops that read each code once, as fast as memory brings it
    more rows    q = 128 high + low, two digits of 7 bits: two products of 8-bit matrices, which oneDNN has
    elsewhere    those saturate on a CPU without VNNI; there tiles of codes become floats, and the sum is torch's

A row with a NaN or an infinity becomes one of NaN; one below 1e-30 counts as zeros. (On a GPU, for x as it is:
linear_int8_triton.py.)"""

import math
from functools import lru_cache

import numpy as np
import torch
from numba import prange
from numpy.typing import NDArray
from torch import Tensor

from .jit import Floats, Thread, compiled, flat, num_threads, share_of
from .prefetch import fetch_row

Codes = NDArray[np.int8]
Shorts = NDArray[np.int16]

LARGEST_FP8 = torch.finfo(torch.float8_e4m3fn).max  # 448
LARGEST_CODE, LARGEST_Q = 127, 8127  # 8127 = 128 * 63 + 63, the largest with two digits from -64 to 63
STRETCH = 2048  # products of a code and a q whose sum stays below 2^31, whatever they are
FEW = 16  # rows, without VNNI; with it one
AHEAD = 4  # rows: on an Emerald Rapids 4 to 16 made no difference, and none was slower
TILE = 1 << 20  # codes that are floats at the same time
TINY, ZERO, NAN = 1e-30, np.float32(0), np.float32(math.nan)
UNSIGNED, INFINITY = np.int32(0x7FFFFFFF), np.int32(0x7F800000)  # of a float32's bits, without sign in its own order


def quantize_int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """weight [N, K] -> codes [N, K] int8, scale [N] float32: within scale / 2 of each weight"""
    scale = weight.float().abs().amax(1) / LARGEST_CODE
    return (weight / scale.clamp(min=TINY)[:, None]).round().to(torch.int8), scale


def quantize_fp8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """weight [N, K] -> codes [N, K] float8_e4m3fn, which a GPU reads in the same way; scale [N] float32"""
    scale = weight.float().abs().amax(1) / LARGEST_FP8
    return (weight / scale.clamp(min=TINY)[:, None]).to(torch.float8_e4m3fn), scale


def linear_int8_spec(x: Tensor, codes: Tensor, scale: Tensor) -> Tensor:
    """x [T, K], codes [N, K], scale [N] -> [T, N]"""
    return (x.float() @ codes.float().T * scale).to(x.dtype)


def round_spec(x: Tensor) -> tuple[Tensor, Tensor]:
    """x [T, K] -> q [T, K] int16, step [T]; step q is what a CPU multiplies in the place of x"""
    top = x.abs().amax(1)
    q = (x * (LARGEST_Q / top.clamp(min=TINY))[:, None]).round()
    return q.to(torch.int16), top / LARGEST_Q


def linear_int8_cpu(x: Tensor, codes: Tensor, scale: Tensor) -> Tensor:
    """linear_int8_spec of x rounded to 14 bits; x and scale float32, all on a CPU."""
    (T, K), N = x.shape, len(codes)
    assert (codes.shape, scale.shape) == ((N, K), (N,)), f"x {x.shape}, codes {codes.shape}, scale {scale.shape}"
    assert codes.dtype == torch.int8, f"{codes.dtype} is not int8"
    assert codes.is_contiguous(), f"strides {codes.stride()} of {codes.shape}"
    if num_few() >= T:
        out = torch.empty(T, N)
        multiply_all(flat(x), x.stride(0), codes.numpy(), flat(scale), out.numpy(), num_threads(codes.numel()))
        return out
    digits, step = torch.empty(2, T, K, dtype=torch.int8), torch.empty(T)
    split_all(flat(x), x.stride(0), digits.numpy(), step.numpy(), num_threads(x.numel()))
    add = add_digits if has_exact_product() and K > 1 else add_tiles  # for one column torch's product is wrong
    return add(digits, step, codes, scale)


def num_few() -> int:
    """Rows for which the loops are fastest."""
    return 1 if has_exact_product() else FEW


def add_digits(digits: Tensor, step: Tensor, codes: Tensor, scale: Tensor) -> Tensor:
    """digits [2, T, K]: high, low -> [T, N]"""
    out = torch.empty(digits.shape[1], len(codes))
    sums = torch._int_mm(digits.view(-1, digits.shape[2]), codes.T).view(2, *out.shape)
    join_all(sums.numpy(), step.numpy(), flat(scale), out.numpy(), num_threads(out.numel()))
    return out


def add_tiles(digits: Tensor, step: Tensor, codes: Tensor, scale: Tensor) -> Tensor:
    """The same by torch's product of floats, whose sums are rounded."""
    q = torch.add(digits[1].float(), digits[0].float(), alpha=128)  # [T, K]
    out = torch.empty(len(q), len(codes))
    rows = max(1, TILE // q.shape[1])
    for n in range(0, len(codes), rows):
        torch.mm(q, codes[n : n + rows].float().T, out=out[:, n : n + rows])
    return out.mul_(scale).mul_(step[:, None])


@lru_cache
def has_exact_product() -> bool:
    """Whether torch multiplies 8-bit matrices exactly here, shown by the largest there are, in a few shapes."""
    return hasattr(torch, "_int_mm") and all(is_exact(T, K) for T in (2, 32, 256) for K in (4, 64, 576))


def is_exact(num_rows: int, size: int) -> bool:
    x, codes = (torch.empty(rows, size, dtype=torch.int8) for rows in (num_rows, 64))
    x[::2], x[1::2], codes[::2], codes[1::2] = -64, 63, LARGEST_CODE, -LARGEST_CODE
    return torch.equal(torch._int_mm(x, codes.T).float(), x.float() @ codes.float().T)


@compiled(parallel=True)
def multiply_all(x: Floats, x_t: int, codes: Codes, scale: Floats, out: Floats, threads: int) -> None:
    if threads == 1:
        multiply_share(x, x_t, codes, scale, out, np.int64(0), threads)
    else:
        for thread in prange(threads):
            multiply_share(x, x_t, codes, scale, out, np.int64(thread), threads)


@compiled()
def multiply_share(x: Floats, x_t: int, codes: Codes, scale: Floats, out: Floats, thread: Thread, threads: int) -> None:
    """A thread's columns of out [T, N]; rows of x are x_t apart, and every thread rounds all of them for itself."""
    q, step = np.empty((len(out), codes.shape[1]), np.int16), np.empty(len(out), np.float32)
    for t in range(len(out)):
        step[t] = round_row(x, t * x_t, q, t)
    start, end = share_of(len(codes), thread, threads)
    for n in range(start, end):
        fetch_row(codes, min(n + AHEAD, len(codes) - 1))
        for t in range(len(out)):
            out[t, n] = scaled(dot(q, codes, t, n), step[t], scale[n])


@compiled()
def round_row(x: Floats, first: int, q: Shorts, t: int) -> np.float32:
    """x[first:][:K] into row t of q [T, K], and its step."""
    row, rounded, top_bits = x[first : first + q.shape[1]], q[t], np.int32(0)
    bits = row.view(np.int32)
    for k in range(len(bits)):
        top_bits = max(top_bits, bits[k] & UNSIGNED)
    top, finite = np.int32(top_bits).view(np.float32), top_bits < INFINITY
    inverse = np.float32(LARGEST_Q) / top if finite and top > TINY else ZERO
    for k in range(len(row)):
        rounded[k] = np.int16(np.rint(row[k] * inverse)) if finite else np.int16(0)
    return top / np.float32(LARGEST_Q) if finite else NAN


@compiled()
def dot(q: Shorts, codes: Codes, t: int, n: int) -> float:
    """Row t of q with row n of codes, exactly. (No slices: threads would wait for each other to count references.)"""
    total, size = 0.0, codes.shape[1]
    for first in range(0, size, STRETCH):
        sums = np.int32(0)
        for k in range(np.uint64(first), np.uint64(min(first + STRETCH, size))):  # no sign, or each index is checked
            sums = np.int32(sums + np.int32(np.int32(q[t, k]) * np.int32(codes[n, k])))
        total += sums
    return total


@compiled(as_written=True)
def scaled(total: float, step: np.float32, scale: np.float32) -> np.float32:
    """One order of the factors for all ways: they agree to the last bit."""
    return np.float32(total) * (step * scale)


@compiled(parallel=True)
def split_all(x: Floats, x_t: int, digits: Codes, step: Floats, threads: int) -> None:
    if threads == 1:
        split_share(x, x_t, digits, step, np.int64(0), threads)
    else:
        for thread in prange(threads):
            split_share(x, x_t, digits, step, np.int64(thread), threads)


@compiled()
def split_share(x: Floats, x_t: int, digits: Codes, step: Floats, thread: Thread, threads: int) -> None:
    """A thread's rows of digits [2, T, K]: high and low."""
    (_, num_rows, size), q = digits.shape, np.empty((1, digits.shape[2]), np.int16)
    start, end = share_of(num_rows, thread, threads)
    for t in range(start, end):
        step[t] = round_row(x, t * x_t, q, 0)
        rounded, high, low = q[0], digits[0, t], digits[1, t]
        for k in range(size):
            digit = (rounded[k] + 64 & 127) - 64
            high[k], low[k] = np.int8(rounded[k] - digit >> 7), np.int8(digit)


@compiled(parallel=True)
def join_all(sums: NDArray[np.int32], step: Floats, scale: Floats, out: Floats, threads: int) -> None:
    if threads == 1:
        join_share(sums, step, scale, out, np.int64(0), threads)
    else:
        for thread in prange(threads):
            join_share(sums, step, scale, out, np.int64(thread), threads)


@compiled()
def join_share(sums: NDArray[np.int32], step: Floats, scale: Floats, out: Floats, thread: Thread, threads: int) -> None:
    """A thread's rows of out [T, N] from sums [2, T, N]: of high digits, of low ones."""
    start, end = share_of(len(out), thread, threads)
    for t in range(start, end):
        for n in range(out.shape[1]):
            total = np.float64(sums[0, t, n]) * 128.0 + np.float64(sums[1, t, n])  # exact
            out[t, n] = scaled(total, step[t], scale[n])
