"""Each pair (a, b) of a head's dimensions is turned by its token's angle: a' = a cos - b sin, b' = b cos + a sin.

    x[t, h]    [ a0 a1 a2 .. | b0 b1 b2 .. ]       pair i is (a_i, b_i): halves, not neighbours
                 \\_________ turned together by cos[t, i], sin[t, i], the same for every head

Heads may lie anywhere (q and k are slices of a fused qkv), a head's numbers side by side; what comes out is contiguous.
The CPU kernel is within two roundings of the larger of |a|, |b|."""

import numpy as np
import torch
from numba import prange
from torch import Tensor

from .jit import Floats, Thread, compiled, flat, num_threads, share_of

Strides = tuple[int, int, int, int]  # of x from token to token and head to head, of cos, of sin


def rope_spec(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [T, H, D], cos and sin [T, 1, D / 2] -> [T, H, D]"""
    a, b = x.chunk(2, dim=-1)  # [T, H, D / 2]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def rope_cpu(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The same, on float32 tensors of a CPU."""
    num_tokens, _, head_dim = x.shape
    assert cos.shape == sin.shape == (num_tokens, 1, head_dim // 2), f"cos {cos.shape}, sin {sin.shape}, x {x.shape}"
    assert head_dim % 2 == 0, f"heads of {head_dim} dimensions are not pairs"
    out = torch.empty(*x.shape)
    strides = x.stride(0), x.stride(1), cos.stride(0), sin.stride(0)
    rope_all(flat(x), flat(cos), flat(sin), strides, out.numpy(), num_threads(out.numel()))
    return out


@compiled(parallel=True)
def rope_all(x: Floats, cos: Floats, sin: Floats, strides: Strides, out: Floats, threads: int) -> None:
    if threads == 1:
        rope_share(x, cos, sin, strides, out, np.int64(0), threads)
    else:
        for thread in prange(threads):
            rope_share(x, cos, sin, strides, out, np.int64(thread), threads)


@compiled()
def rope_share(
    x: Floats, cos: Floats, sin: Floats, strides: Strides, out: Floats, thread: Thread, threads: int
) -> None:
    """A thread's tokens of out [T, H, D]."""
    (x_t, x_h, cos_t, sin_t), (num_tokens, num_heads, head_dim) = strides, out.shape
    half = head_dim // 2
    start, end = share_of(num_tokens, thread, threads)
    for t in range(start, end):
        c, s = cos[t * cos_t : t * cos_t + half], sin[t * sin_t : t * sin_t + half]
        for h in range(num_heads):
            head = x[t * x_t + h * x_h : t * x_t + h * x_h + head_dim]
            a, b, turned_a, turned_b = head[:half], head[half:], out[t, h, :half], out[t, h, half:]
            for i in range(half):
                turned_a[i] = a[i] * c[i] - b[i] * s[i]
                turned_b[i] = b[i] * c[i] + a[i] * s[i]
