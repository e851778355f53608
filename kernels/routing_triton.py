"""weights, experts = the k largest of softmax(logits), row by row; divided by their sum if renormalised.

The same as `route_spec` in routing.py, on a GPU: one launch for what torch does in five. A program owns BT tokens and
all their logits, and takes the best of what is left k times:

    left      [ 0.1  2.0 -1.0  1.0 ]    best 2.0: expert 1
              [ 0.1   .  -1.0  1.0 ]    best 1.0: expert 3

Of equal logits the smaller expert comes first. A NaN counts as the smallest logit there is when experts are chosen, and
makes the sum, and so all weights of its token, NaN."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .expect import OPTIONS, expect

MAX_EXPERTS = 1024


@triton.jit
def route_kernel(
    p_logits, p_weights, p_experts, num_tokens, logits_t, num_experts,
    K: tl.constexpr, RENORMALIZE: tl.constexpr, BT: tl.constexpr, BE: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    o_t = tl.program_id(0).to(tl.int64) * BT + tl.arange(0, BT)[:, None]  # [BT, 1]
    o_e, o_k = tl.arange(0, BE)[None, :], tl.arange(0, BK)[None, :]  # [1, BE], [1, BK]
    m_t, left = o_t < num_tokens, o_e < num_experts
    b_logits = tl.load(p_logits + o_t * logits_t + o_e, mask=m_t & left, other=float("-inf")).to(tl.float32)
    b_logits = tl.where(m_t, b_logits, 0.0)  # [BT, BE]; beyond the last token anything that divides well
    b_order = tl.where(b_logits == b_logits, b_logits, float("-inf"))
    top = tl.max(tl.where(left, b_order, float("-inf")), axis=1)[:, None]  # [BT, 1]
    top = tl.where(top == float("-inf"), 0.0, top)  # nothing but NaNs: -inf - -inf would be one more
    total = tl.sum(tl.where(left, tl.exp(b_logits - top), 0.0), axis=1)[:, None]
    b_weights, b_experts = tl.full([BT, BK], 0.0, tl.float32), tl.full([BT, BK], 0, tl.int64)
    for k in tl.static_range(K):
        best = tl.max(tl.where(left, b_order, float("-inf")), axis=1)[:, None]
        expert = tl.min(tl.where(left & (b_order == best), o_e, BE), axis=1)[:, None]
        b_weights = tl.where(o_k == k, tl.exp(best - top) / total, b_weights)
        b_experts = tl.where(o_k == k, expert.to(tl.int64), b_experts)
        left = left & (o_e != expert)
    if RENORMALIZE:
        b_weights = b_weights / tl.sum(b_weights, axis=1)[:, None]
    mask = m_t & (o_k < K)
    tl.store(p_weights + o_t * K + o_k, b_weights, mask=mask)
    tl.store(p_experts + o_t * K + o_k, b_experts, mask=mask)


def route(logits: Tensor, k: int, renormalize: bool) -> tuple[Tensor, Tensor]:
    """logits [T, E] -> weights [T, k] in float32, experts [T, k] in int64"""
    expect("logits", logits, (None, None), like=logits)
    T, E = logits.shape
    if not 1 <= k <= E or E > MAX_EXPERTS:
        raise ValueError(f"{k} of {E} experts: k is from 1 to E, and E at most {MAX_EXPERTS}")
    weights = torch.empty(T, k, dtype=torch.float32, device=logits.device)
    experts = torch.empty(T, k, dtype=torch.int64, device=logits.device)
    if T:
        columns = max(16, triton.next_power_of_2(E))
        rows = max(1, 1024 // columns)
        route_kernel[(triton.cdiv(T, rows),)](
            logits, weights, experts, T, logits.stride(0), E,
            K=k, RENORMALIZE=renormalize, BT=rows, BE=columns, BK=triton.next_power_of_2(k), num_warps=4, **OPTIONS,
        )  # fmt: skip
    return weights, experts
