"""out = weight * x / sqrt(mean(x^2) + eps): every row is divided by its own root mean square.

    x       [ 3.0  4.0  0.0  0.0 ]      mean of squares 6.25, root 2.5
    out     [ 1.2  1.6  0.0  0.0 ]      times weight, channel by channel

    add_rms_norm, where a residual stream runs past:

        residual --(+)--> total, the new residual
        x ---------/  \\--> rms_norm --> out

Few operations for many bytes: what counts is that each number is read once and written once, so the sum is done on the
way. Invariant: both ways give the same numbers. Rows may lie anywhere (a head's slice of a fused qkv), a row's numbers
side by side. The CPU kernel is within 1e-6 of each result's size."""

import math

import numpy as np
import torch
from numba import prange
from torch import Tensor

from .jit import Floats, Thread, compiled, flat, num_threads, share_of

Pair = tuple[int, int]
Scaling = tuple[Floats, float]  # weight [M], eps
Results = tuple[Floats, Floats]  # out and total [T, M]

ZERO = np.float32(0)


def rms_norm_spec(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [..., M], weight [M] -> [..., M]"""
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return weight * (wide * scale).to(x.dtype)


def add_rms_norm_spec(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x, residual [T, M] -> the norm of their sum, and the sum"""
    total = x + residual
    return rms_norm_spec(total, weight, eps), total


def rms_norm_cpu(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [..., M] with at most two axes before M -> the same shape, on float32 tensors of a CPU."""
    rows = x if x.dim() == 3 else x[:, None]  # [T, H, M]
    assert weight.shape == x.shape[-1:], f"weight {weight.shape}, x {x.shape}"
    out = torch.empty(*rows.shape)
    strides, scaling = (rows.stride(0), rows.stride(1)), (flat(weight), eps)
    rms_norm_all(flat(rows), strides, scaling, out.numpy(), num_threads(out.numel()))
    return out.view(x.shape)


def add_rms_norm_cpu(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x, residual [T, M] -> the norm of their sum, and the sum, on float32 tensors of a CPU."""
    assert x.shape == residual.shape, f"x {x.shape}, residual {residual.shape}"
    assert weight.shape == x.shape[1:], f"weight {weight.shape}, x {x.shape}"
    out, total = torch.empty(*x.shape), torch.empty(*x.shape)
    strides, scaling, results = (x.stride(0), residual.stride(0)), (flat(weight), eps), (out.numpy(), total.numpy())
    add_rms_norm_all(flat(x), flat(residual), strides, scaling, results, num_threads(out.numel()))
    return out, total


@compiled(parallel=True)
def rms_norm_all(x: Floats, strides: Pair, scaling: Scaling, out: Floats, threads: int) -> None:
    if threads == 1:
        rms_norm_share(x, strides, scaling, out, np.int64(0), threads)
    else:
        for thread in prange(threads):
            rms_norm_share(x, strides, scaling, out, np.int64(thread), threads)


@compiled()
def rms_norm_share(x: Floats, strides: Pair, scaling: Scaling, out: Floats, thread: Thread, threads: int) -> None:
    """A thread's tokens of out [T, H, M]; strides are x's from token to token and head to head."""
    (x_t, x_h), (num_tokens, num_heads, size) = strides, out.shape
    start, end = share_of(num_tokens, thread, threads)
    for t in range(start, end):
        for h in range(num_heads):
            norm_row(x[t * x_t + h * x_h : t * x_t + h * x_h + size], scaling, out[t, h])


@compiled(parallel=True)
def add_rms_norm_all(
    x: Floats, residual: Floats, strides: Pair, scaling: Scaling, results: Results, threads: int
) -> None:
    if threads == 1:
        add_rms_norm_share(x, residual, strides, scaling, results, np.int64(0), threads)
    else:
        for thread in prange(threads):
            add_rms_norm_share(x, residual, strides, scaling, results, np.int64(thread), threads)


@compiled()
def add_rms_norm_share(
    x: Floats, residual: Floats, strides: Pair, scaling: Scaling, results: Results, thread: Thread, threads: int
) -> None:
    """A thread's rows of out and total [T, M]; strides are those of x and residual from row to row."""
    (x_t, residual_t), (out, total), size = strides, results, results[0].shape[1]
    start, end = share_of(len(out), thread, threads)
    for t in range(start, end):
        a, b, row = x[t * x_t : t * x_t + size], residual[t * residual_t : t * residual_t + size], total[t]
        for i in range(size):
            row[i] = a[i] + b[i]
        norm_row(row, scaling, out[t])


@compiled()
def norm_row(x: Floats, scaling: Scaling, out: Floats) -> None:
    """x, out [M]"""
    (weight, eps), squares = scaling, ZERO
    for i in range(len(x)):
        squares += x[i] * x[i]
    scale = np.float32(1 / math.sqrt(squares / len(x) + eps))
    for i in range(len(x)):
        out[i] = x[i] * scale * weight[i]
