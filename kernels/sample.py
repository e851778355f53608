"""token = first v with running(v) > u * running(V - 1), running(v) = p[0] + .. + p[v]: one row of logits, one draw.

    edits      of the tokens listed for the row      x / r if x > 0 else x * r                  seen, prompt or output
                                                     x - frequency * count - presence           count > 0 in the output
                                                     x + bias
               of all tokens                         -inf where not allowed
    weights    p = exp((x - max) / temperature)      temperature 0: the first of the largest, and that is all
    min_p      drop what is less likely than min_p times the likeliest
    top_k      keep the k likeliest                  of equals, here and below, the smaller ids
    top_p      of what is left, keep the fewest that have top_p of its mass
    u          in [0, 1), made of (seed, position) by whoever asks

Only ratios of weights count, so nobody divides them by their sum. The three cuts keep a beginning of one and the same
order (likelier first, then the smaller id): what is kept is told by one weight and how many of its equals stay. Running
sums are float64. A row with a NaN, or with nothing but -inf, has no token: -1; nor has a draw where there is an inf."""

import math

import torch
from torch import Tensor


def edit_spec(
    logits: Tensor, ids: Tensor, counts: Tensor, bias: Tensor, penalties: tuple[float, float, float], allowed: Tensor
) -> Tensor:
    """logits [V]; of the listed ids [E] counts (-1: never seen, 0: in the prompt only) and bias; allowed [V] -> [V]"""
    repetition, frequency, presence = penalties
    x, out = logits[ids], logits.clone()
    repeated = torch.where(x > 0, x / repetition, x * repetition)
    x = torch.where(counts >= 0, repeated, x)
    out[ids] = x - frequency * counts.clamp(min=0) - presence * (counts > 0) + bias
    return out.masked_fill(~allowed, -math.inf)


def sample_spec(logits: Tensor, temperature: float, min_p: float, top_k: int, top_p: float, u: float) -> int:
    """logits [V], edited; cuts that are off are min_p 0, top_k 0 or below, top_p 1."""
    top = logits.max()  # a NaN is the maximum of its row
    if top.isnan() or top == -math.inf or (temperature > 0 and top.isinf()):
        return -1
    if temperature == 0:
        return int(logits.argmax())
    likeliest = ((logits - top) / temperature).exp().double().sort(descending=True, stable=True)
    kept = likeliest.values * (likeliest.values >= torch.tensor(min_p, dtype=torch.float32))
    kept[top_k if top_k > 0 else len(kept) :] = 0
    if top_p < 1:
        sums = kept.cumsum(0)
        kept[int(torch.searchsorted(sums, top_p * sums[-1])) + 1 :] = 0
    running = torch.zeros_like(kept).scatter(0, likeliest.indices, kept).cumsum(0)
    return int(torch.searchsorted(running, u * running[-1], right=True))
