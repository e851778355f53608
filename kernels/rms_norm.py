"""out = weight * x / sqrt(mean(x^2) + eps): every row is divided by its own root mean square.

    x       [ 3.0  4.0  0.0  0.0 ]      mean of squares 6.25, root 2.5
    out     [ 1.2  1.6  0.0  0.0 ]      times weight, channel by channel

    add_rms_norm, where a residual stream runs past:

        residual --(+)--> total, the new residual
        x ---------/  \\--> rms_norm --> out

Few operations for many bytes: what counts is that each number is read once and written once, so the sum is done on the
way. Invariant: both ways give the same numbers. Rows may lie anywhere (a head's slice of a fused qkv), a row's numbers
side by side. The CPU kernel is within 1e-6 of each result's size."""

import numpy as np
import torch
from numba import prange
from torch import Tensor

from .expect import expect
from .jit import Floats, compiled, flat, num_threads, share_of

Pair = tuple[int, int]
Scaling = tuple[Floats, np.float32]  # weight [M], eps

ZERO, ONE = np.float32(0), np.float32(1)


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
    expect("x", rows, (None, None, None), like=x, dtype=torch.float32)
    expect("weight", weight, x.shape[-1:], like=x)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if out.numel():
        strides, scaling = (rows.stride(0), rows.stride(1)), (weight.numpy(), np.float32(eps))
        rms_norm_all(flat(x), strides, scaling, out.view(rows.shape).numpy(), num_threads(out.numel()))
    return out


def add_rms_norm_cpu(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x, residual [T, M] -> the norm of their sum, and the sum, on float32 tensors of a CPU."""
    expect("x", x, (None, None), like=x, dtype=torch.float32)
    expect("residual", residual, tuple(x.shape), like=x)
    expect("weight", weight, x.shape[-1:], like=x)
    out, total = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for _ in range(2))
    if out.numel():
        strides, scaling = (x.stride(0), residual.stride(0)), (weight.numpy(), np.float32(eps))
        threads = num_threads(out.numel())
        add_rms_norm_all(flat(x), flat(residual), strides, scaling, out.numpy(), total.numpy(), threads)
    return out, total


@compiled(parallel=True)
def rms_norm_all(x: Floats, strides: Pair, scaling: Scaling, out: Floats, threads: int) -> None:
    if threads == 1:
        rms_norm_share(x, strides, scaling, out, np.int64(0), threads)
    else:
        for thread in prange(threads):
            rms_norm_share(x, strides, scaling, out, np.int64(thread), threads)


@compiled()
def rms_norm_share(x: Floats, strides: Pair, scaling: Scaling, out: Floats, thread: int, threads: int) -> None:
    """A thread's tokens of out [T, H, M]; strides are x's from token to token and head to head."""
    (x_t, x_h), (num_tokens, num_heads, size) = strides, out.shape
    for t in share_of(num_tokens, thread, threads):
        for h in range(num_heads):
            norm_row(x[t * x_t + h * x_h : t * x_t + h * x_h + size], scaling, out[t, h])


@compiled(parallel=True)
def add_rms_norm_all(
    x: Floats, residual: Floats, strides: Pair, scaling: Scaling, out: Floats, total: Floats, threads: int
) -> None:
    if threads == 1:
        add_rms_norm_share(x, residual, strides, scaling, out, total, np.int64(0), threads)
    else:
        for thread in prange(threads):
            add_rms_norm_share(x, residual, strides, scaling, out, total, np.int64(thread), threads)


@compiled()
def add_rms_norm_share(
    x: Floats, residual: Floats, strides: Pair, scaling: Scaling, out: Floats, total: Floats, thread: int, threads: int
) -> None:
    """A thread's rows of out and total [T, M]; strides are those of x and residual from row to row."""
    (x_t, residual_t), size = strides, out.shape[1]
    for t in share_of(len(out), thread, threads):
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
    scale = ONE / np.sqrt(squares / np.float32(len(x)) + eps)
    for i in range(len(x)):
        out[i] = x[i] * scale * weight[i]
