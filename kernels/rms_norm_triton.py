"""out = weight * x / sqrt(mean(x^2) + eps): every row is divided by its own root mean square.

    rows [T, H], each of M numbers      a program owns BT whole rows, [BT, BM], BM the power of two at or above M;
                                        what hangs over is masked; small rows share a program

The same as `rms_norm_spec` and `add_rms_norm_spec` in rms_norm.py, on a GPU; the sum is done on the way. Invariant: the
total is rounded to its dtype before it is squared, as if it had been stored and read again, so both ways give the same
numbers. Rows may lie anywhere (a head's slice of a fused qkv), a row's numbers side by side."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .expect import OPTIONS, expect


@triton.jit
def rms_norm_kernel(
    p_x, p_residual, p_weight, p_out, p_total,
    num_rows, num_heads, x_t, x_h, residual_t, size, eps,
    BT: tl.constexpr, BM: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    """Rows [T, num_heads], each of `size` numbers; x_t and x_h are the strides of x."""
    o_row = tl.program_id(0).to(tl.int64) * BT + tl.arange(0, BT)[:, None]  # [BT, 1]
    o_col = tl.arange(0, BM)[None, :]  # [1, BM]
    mask = (o_row < num_rows) & (o_col < size)
    p_row = p_x + o_row // num_heads * x_t + o_row % num_heads * x_h
    b_x = tl.load(p_row + o_col, mask=mask, other=0.0)  # [BT, BM]
    o_out = o_row * size + o_col  # the results are contiguous
    if ADD:
        b_residual = tl.load(p_residual + o_row * residual_t + o_col, mask=mask, other=0.0)
        b_x = (b_x.to(tl.float32) + b_residual.to(tl.float32)).to(b_x.dtype)
        tl.store(p_total + o_out, b_x, mask=mask)
    b_wide = b_x.to(tl.float32)
    b_scale = tl.rsqrt(tl.sum(b_wide * b_wide, axis=1) / size + eps)  # [BT]
    b_normed = (b_wide * b_scale[:, None]).to(b_x.dtype).to(tl.float32)
    b_weight = tl.load(p_weight + o_col, mask=o_col < size, other=0.0).to(tl.float32)  # [1, BM]
    tl.store(p_out + o_out, b_normed * b_weight, mask=mask)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [..., M] with at most two axes before M, weight [M] -> [..., M]"""
    rows = x if x.dim() == 3 else x[:, None]  # [T, H, M]
    expect("x", rows, (None, None, None), like=x)
    expect("weight", weight, x.shape[-1:], like=x)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    launch(rows, None, weight, out, None, eps)
    return out


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x, residual [T, M], weight [M] -> the norm of their sum, and the sum"""
    expect("x", x, (None, None), like=x)
    expect("residual", residual, tuple(x.shape), like=x)
    expect("weight", weight, x.shape[-1:], like=x)
    out, total = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for _ in range(2))
    launch(x[:, None], residual, weight, out, total, eps)
    return out, total


def launch(x: Tensor, residual: Tensor | None, weight: Tensor, out: Tensor, total: Tensor | None, eps: float) -> None:
    """x [T, H, M], all of it checked. A program gets a thousand numbers or more: small heads share one."""
    num_tokens, num_heads, size = x.shape
    if not x.numel():
        return
    columns = triton.next_power_of_2(size)
    rows = max(1, 1024 // columns)
    residual_t = 0 if residual is None else residual.stride(0)
    rms_norm_kernel[(triton.cdiv(num_tokens * num_heads, rows),)](
        x, residual, weight, out, total,
        num_tokens * num_heads, num_heads, x.stride(0), x.stride(1), residual_t, size, eps,
        BT=rows, BM=columns, ADD=residual is not None, num_warps=min(16, max(1, rows * columns // 512)), **OPTIONS,
    )  # fmt: skip
