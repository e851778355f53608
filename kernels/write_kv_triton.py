"""keys[block, head, offset] = k[token, head], and values likewise, where slot = block * P + offset; slot -1: nowhere.

    token t, slot 37, P = 16   ->   block 2, offset 5

        k[t]   head 0  [ D numbers ]  --->  keys[2, 0, 5]      a program takes one token and moves its K rows of keys
               head 1  [ D numbers ]  --->  keys[2, 1, 5]      and K rows of values, [BK, BD]: the powers of
               ...                                             two above K and D, what hangs over is masked

The same as `write_kv_spec` in write_kv.py, on a GPU. Blocks may lie anywhere: all strides are the tensors' own, so a
pool that interleaves keys and values is as good as two. Offsets are 64 bits wide: a pool has more numbers than 2^31.
Invariant: nobody else's slot is touched, and no two tokens of a step have the same slot.

With scales each row becomes narrow numbers and a scale, as in narrow.py and to the bit; without, that code is left out
when the kernel is compiled."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .expect import expect, expect_pool, scale_strides
from .narrow import LARGEST, TINY, Scales

EXACT = {"enable_fp_fusion": False}  # rounding to whole numbers counts on each sum being rounded


@triton.jit
def write_kv_kernel(
    p_k, p_v, p_keys, p_values, p_slots, p_key_scales, p_value_scales,
    k_t, k_h, v_t, v_h, keys_b, keys_h, keys_p, values_b, values_h, values_p, scales_b, scales_h,
    num_heads, head_dim, P: tl.constexpr, BK: tl.constexpr, BD: tl.constexpr, MOST: tl.constexpr, TINY: tl.constexpr,
):  # fmt: skip
    """x_t, x_h, x_b, x_p: the strides of x from token to token, head to head, block to block, slot to slot."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(p_slots + token)
    if slot >= 0:
        block, offset = slot // P, slot % P
        o_h, o_d = tl.arange(0, BK).to(tl.int64)[:, None], tl.arange(0, BD)[None, :]  # [BK, 1], [1, BD]
        mask = (o_h < num_heads) & (o_d < head_dim)
        b_k = tl.load(p_k + token * k_t + o_h * k_h + o_d, mask=mask, other=0.0)  # [BK, BD]
        b_v = tl.load(p_v + token * v_t + o_h * v_h + o_d, mask=mask, other=0.0)
        m_mute = tl.max(tl.where(tl.abs(b_v.to(tl.float32)) < float("inf"), 0, 1), axis=1)[:, None] > 0  # [BK, 1]
        b_k, b_v = tl.where(m_mute, float("nan"), b_k), tl.where(m_mute, 0.0, b_v)
        if p_key_scales is not None:
            o_scale, m_h = block * scales_b + o_h * scales_h + offset, o_h < num_heads  # [BK, 1]
            b_k, b_key_scale = narrow(b_k, p_keys.dtype.element_ty, MOST, TINY)
            b_v, b_value_scale = narrow(b_v, p_keys.dtype.element_ty, MOST, TINY)
            tl.store(p_key_scales + o_scale, b_key_scale, mask=m_h)
            tl.store(p_value_scales + o_scale, b_value_scale, mask=m_h)
        tl.store(p_keys + block * keys_b + o_h * keys_h + offset * keys_p + o_d, b_k, mask=mask)
        tl.store(p_values + block * values_b + o_h * values_h + offset * values_p + o_d, b_v, mask=mask)


@triton.jit
def narrow(b_x, dtype: tl.constexpr, MOST: tl.constexpr, TINY: tl.constexpr):
    """[BK, BD] -> as many numbers of this dtype, and scales [BK, 1]"""
    b_x = b_x.to(tl.float32)
    m_bad = tl.max(tl.where(tl.abs(b_x) < float("inf"), 0, 1), axis=1)[:, None] > 0  # [BK, 1]
    b_x = tl.where(m_bad, 0.0, b_x)
    largest = tl.max(tl.abs(b_x), axis=1)[:, None]  # [BK, 1]
    m_some = largest > TINY
    inverse = tl.where(m_some, tl.div_rn(MOST, tl.where(m_some, largest, 1.0)), 0.0)
    scale = tl.where(m_bad, float("nan"), tl.where(m_some, largest * (1 / MOST), 0.0))
    numbers = b_x * inverse
    if dtype == tl.int8:
        numbers = (numbers + 12582912.0) - 12582912.0  # 1.5 x 2^23: what is added to it is rounded to whole numbers
    return numbers.to(dtype), scale


def write_kv(
    k: Tensor, v: Tensor, keys: Tensor, values: Tensor, slot_mapping: Tensor, scales: Scales | None = None
) -> None:
    """k, v [T, K, D] into keys, values [B, K, P, D] at slot_mapping [T], int64; narrow ones have scales [B, K, P]."""
    expect("k", k, (None, None, None), like=k)
    num_tokens, num_heads, head_dim = k.shape
    expect("v", v, tuple(k.shape), like=k)
    expect_pool(keys, values, (None, num_heads, None, head_dim), scales, like=k)
    expect("slot_mapping", slot_mapping, (num_tokens,), like=k, dtype=torch.int64)
    if k.numel():
        heads, dims = triton.next_power_of_2(num_heads), triton.next_power_of_2(head_dim)
        write_kv_kernel[(num_tokens,)](
            k, v, keys, values, slot_mapping, *(scales or (None, None)),
            *k.stride()[:2], *v.stride()[:2], *keys.stride()[:3], *values.stride()[:3], *scale_strides(scales),
            num_heads, head_dim, P=keys.shape[2], BK=heads, BD=dims, MOST=LARGEST.get(keys.dtype, 1.0), TINY=TINY,
            **EXACT,
        )  # fmt: skip
