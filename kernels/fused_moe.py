"""out[a] = down[e] (silu(gate[e] x) * up[e] x), with e the expert of row a and x the token that row a is about.

    token                0        1        2          each went to k = 2 of E = 4 experts
    experts           [ 2 0 ]  [ 0 2 ]  [ 3 0 ]
    rows, as told        0 1      2 3      4 5        A = T k of them: row a is about token a // k
    rows, sorted      order   [ 1 2 5 | | 0 3 | 4 ]   by expert; expert 1 has none
                      starts  [ 0     3 3     5   6 ]
                      sources [ 0 1 2 | | 0 1 | 2 ]   = order // k, the tokens

Sorted, the rows of one expert lie side by side, so its matrices are read once for all of them: a product per expert
instead of one per row. `gate_up` has gate's rows, then up's. What comes out is sorted too, and not yet weighted: who
sent a row knows what its answer is worth. Invariant: a row's answer depends on no other row; an expert without rows
costs nothing and its matrices are not read."""

from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import linear

from .silu_mul import silu_mul_cpu, silu_mul_spec


def sort_by_expert(experts: Tensor, num_experts: int) -> tuple[Tensor, Tensor]:
    """experts [A] int64 -> order [A] and starts [E + 1], int64; rows of one expert stay in their order."""
    by_expert, order = experts.sort(stable=True)
    return order, torch.searchsorted(by_expert, torch.arange(num_experts + 1, device=experts.device))


def fused_moe_spec(x: Tensor, gate_up: Tensor, down: Tensor, sources: Tensor, starts: Tensor) -> Tensor:
    """x [T, M], gate_up [E, 2 F, M], down [E, M, F], sources [A], starts [E + 1] -> [A, M]"""
    experts = torch.arange(len(down), device=x.device).repeat_interleave(starts.diff())  # [A]
    gated = silu_mul_spec(torch.einsum("afm,am->af", gate_up[experts], x[sources]))  # [A, F]
    return torch.einsum("amf,af->am", down[experts], gated)


def fused_moe_torch(x: Tensor, gate_up: Tensor, down: Tensor, sources: Tensor, starts: Tensor) -> Tensor:
    """The same by torch's products, one expert after the other."""
    rows, out = x[sources], torch.empty(len(sources), x.shape[1], dtype=x.dtype, device=x.device)
    gate = silu_mul_cpu if x.device.type == "cpu" and x.dtype == torch.float32 else silu_mul_spec
    for expert, (start, end) in enumerate(pairwise(starts.tolist())):
        if start < end:
            gated = gate(linear(rows[start:end], gate_up[expert]))
            torch.mm(gated, down[expert].T, out=out[start:end])
    return out
