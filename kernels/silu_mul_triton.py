"""out = silu(gate) * up, where silu(g) = g / (1 + exp(-g)): one half of a row opens or shuts the other.

The same as `silu_mul_spec` in silu_mul.py, on a GPU. No row needs another and no number its neighbour: the kernel cuts
the [T, F] results into stretches of BF, one program each. Arithmetic in float32, rounded once at the end (the
specification, in torch, rounds silu(gate) too)."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .expect import OPTIONS, expect


@triton.jit
def silu_mul_kernel(p_gate_up, p_out, gate_up_t, size, BF: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    o_f = tl.program_id(1) * BF + tl.arange(0, BF)  # [BF]
    m_f = o_f < size
    p_gate = p_gate_up + token * gate_up_t + o_f
    b_gate = tl.load(p_gate, mask=m_f, other=0.0).to(tl.float32)  # [BF]
    b_up = tl.load(p_gate + size, mask=m_f, other=0.0).to(tl.float32)
    tl.store(p_out + token * size + o_f, b_gate * tl.sigmoid(b_gate) * b_up, mask=m_f)


def silu_mul(gate_up: Tensor) -> Tensor:
    """gate_up [T, 2 F] -> [T, F]"""
    expect("gate_up", gate_up, (None, None), like=gate_up)
    num_tokens, width = gate_up.shape
    if width % 2:
        raise ValueError(f"gate_up has {width} columns, expected as many for gate as for up")
    out = torch.empty(num_tokens, width // 2, dtype=gate_up.dtype, device=gate_up.device)
    if out.numel():
        columns = min(1024, triton.next_power_of_2(width // 2))
        grid = (num_tokens, triton.cdiv(width // 2, columns))
        silu_mul_kernel[grid](gate_up, out, gate_up.stride(0), width // 2, BF=columns, **OPTIONS)
    return out
