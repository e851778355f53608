"""Each pair (a, b) of a head's dimensions is turned by its token's angle: a' = a cos - b sin, b' = b cos + a sin.

The same as `rope_spec` in rope.py, on a GPU. A program takes one token and up to BH of its heads, [BH, BI] pairs, so a
token's angles are read once for many heads. Arithmetic in float32, rounded once (the specification rounds each
product). Heads may lie anywhere (q and k are slices of a fused qkv), a head's numbers side by side."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .expect import OPTIONS, expect


@triton.jit
def rope_kernel(
    p_x, p_cos, p_sin, p_out, x_t, x_h, cos_t, sin_t, num_heads, half, BH: tl.constexpr, BI: tl.constexpr
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    o_h = tl.program_id(1).to(tl.int64) * BH + tl.arange(0, BH)  # [BH]
    o_i = tl.arange(0, BI)  # [BI], pairs
    m_i = o_i < half
    mask = (o_h < num_heads)[:, None] & m_i[None, :]
    b_cos = tl.load(p_cos + token * cos_t + o_i, mask=m_i, other=0.0).to(tl.float32)[None, :]  # [1, BI]
    b_sin = tl.load(p_sin + token * sin_t + o_i, mask=m_i, other=0.0).to(tl.float32)[None, :]
    p_a = p_x + token * x_t + o_h[:, None] * x_h + o_i[None, :]  # [BH, BI]
    b_a = tl.load(p_a, mask=mask, other=0.0).to(tl.float32)
    b_b = tl.load(p_a + half, mask=mask, other=0.0).to(tl.float32)
    p_turned = p_out + (token * num_heads + o_h[:, None]) * (2 * half) + o_i[None, :]
    tl.store(p_turned, b_a * b_cos - b_b * b_sin, mask=mask)
    tl.store(p_turned + half, b_b * b_cos + b_a * b_sin, mask=mask)


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [T, H, D], cos and sin [T, 1, D / 2] -> [T, H, D]"""
    expect("x", x, (None, None, None), like=x)
    num_tokens, num_heads, head_dim = x.shape
    if head_dim % 2:
        raise ValueError(f"x has heads of {head_dim} dimensions, expected pairs")
    expect("cos", cos, (num_tokens, 1, head_dim // 2), like=x)
    expect("sin", sin, (num_tokens, 1, head_dim // 2), like=x)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if out.numel():
        heads, pairs = min(16, triton.next_power_of_2(num_heads)), triton.next_power_of_2(head_dim // 2)
        rope_kernel[(num_tokens, triton.cdiv(num_heads, heads))](
            x, cos, sin, out, x.stride(0), x.stride(1), cos.stride(0), sin.stride(0), num_heads, head_dim // 2,
            BH=heads, BI=pairs, **OPTIONS,
        )  # fmt: skip
    return out
