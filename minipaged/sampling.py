"""A row of logits becomes one token: the likeliest, or a draw that depends on nothing but (seed, position).

    logits -> processors.py -> divided by temperature -> exp -> weights p                  float32
    min_p   drop what is less likely than min_p times the likeliest
    top_k   keep the k likeliest
    top_p   of what is left, keep the fewest that have top_p of its mass
    u = uniform(seed, position) in [0, 1)

    p        |--- 0 ---|- 1 -|------- 2 -------|- 3 -|
    u * sum   ................^                           -> token 2: the first whose running sum exceeds it

Of equally likely tokens the smaller id is kept first. Running sums are float64, over float32 sums of blocks. Invariant:
a row's token does not depend on the other rows, so a request draws the same alone and in company. A row with a NaN
gives NO_TOKEN. Order and meaning are vLLM's; what the model itself thought of a token is in `logprobs.py`. (From level
01.)"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .batch import NO_TOKEN, Row
from .processors import process
from .sampling_params import SamplingParams

MASK = 2**64 - 1
NUM_CANDIDATES = 128  # enough for top_p mostly, and far cheaper than sorting 49,152
NUM_ROWS = 16  # worked on at once: their logits stay in a CPU's cache
BLOCK = 128  # weights that are summed at once


def sample(logits: Tensor, rows: list[Row]) -> list[int]:
    """One token id for each row, from float32 logits [R + Q, V]: from R on nothing is drawn.

    A few rows at a time; those of greedy requests cost neither softmax nor sort."""
    parts = [slice(start, min(start + NUM_ROWS, len(rows))) for start in range(0, len(rows), NUM_ROWS)]
    tokens = [choose_tokens(process(logits[part], rows[part]), rows[part]) for part in parts]
    result: list[int] = torch.cat(tokens).tolist() if tokens else []
    return result


def choose_tokens(logits: Tensor, rows: list[Row]) -> Tensor:
    """[N, V], processed -> [N]"""
    random = [i for i, row in enumerate(rows) if not row.params.greedy]
    if not random:
        return likeliest(logits)
    greedy = [i for i, row in enumerate(rows) if row.params.greedy]
    tokens = torch.empty(len(rows), dtype=torch.int64, device=logits.device)
    tokens[greedy] = likeliest(logits[greedy])
    tokens[random], _ = draw(logits[random], [rows[i] for i in random])
    return tokens


def likeliest(logits: Tensor) -> Tensor:
    """[N, V] -> [N]"""
    best, tokens = logits.max(dim=-1)  # a NaN is the maximum of its row
    return tokens.masked_fill(best.isnan() | (best == -torch.inf), NO_TOKEN)


def draw(logits: Tensor, rows: list[Row]) -> tuple[Tensor, Tensor]:
    """[N, V] -> a token each [N], and the weights that it was drawn with [N, V]."""
    weights = distribution(logits, [row.params for row in rows])
    return pick(weights, [uniform(row.seed, row.position) for row in rows]), weights


def distribution(logits: Tensor, params: list[SamplingParams]) -> Tensor:
    """What is drawn from, [N, V] -> [N, V]: weights, of which the largest is 1. None may be greedy."""
    temperature = column([p.temperature for p in params], logits)
    scaled = logits - logits.amax(-1, keepdim=True)  # the best first at 0: no overflow at 1e-5
    return cut(scaled.div_(temperature).exp_(), params)


def pick(weights: Tensor, numbers: list[float]) -> Tensor:
    """[N, V] -> [N], by inverting each row's cumulative distribution at its own random number in [0, 1).

    First the block in which it lies, then the token: what must be summed one by one is short."""
    blocks = split(weights)
    sums = blocks.sum(-1).cumsum(-1, dtype=torch.float64)  # [N, V / BLOCK]
    target = column(numbers, weights, torch.float64) * sums[:, -1:]
    block = torch.searchsorted(sums, target, right=True).clamp(max=sums.shape[-1] - 1)  # [N, 1]
    before = torch.where(block > 0, sums.gather(-1, (block - 1).clamp(min=0)), 0.0)
    each = torch.arange(len(weights), device=weights.device)
    inner = blocks[each, block[:, 0]].cumsum(-1, dtype=torch.float64)  # [N, BLOCK]
    # a block's own sum is rounded: never beyond its last token of any weight
    target = torch.minimum(target - before, inner[:, -1:].nextafter(torch.zeros_like(before)))
    tokens = block * BLOCK + torch.searchsorted(inner, target, right=True)
    return tokens[:, 0].masked_fill(~(sums[:, -1] > 0), NO_TOKEN)  # the sum of a NaN's row is NaN


def split(weights: Tensor) -> Tensor:
    """[N, V] -> [N, V / BLOCK, BLOCK], with zeros at the end if it does not divide."""
    if weights.shape[-1] % BLOCK:
        weights = torch.nn.functional.pad(weights, (0, -weights.shape[-1] % BLOCK))
    return weights.view(len(weights), weights.shape[-1] // BLOCK, BLOCK)


def cut(weights: Tensor, params: list[SamplingParams]) -> Tensor:
    """Zero what min_p, top_k and top_p exclude from [N, V]; who asks for none of them pays for none."""
    vocab_size = weights.shape[-1]
    weights = cut_rows(weights, keep_min_p, {i: p.min_p for i, p in enumerate(params) if p.min_p > 0})
    weights = cut_rows(weights, keep_top_k, {i: p.top_k for i, p in enumerate(params) if 0 < p.top_k < vocab_size})
    return cut_rows(weights, keep_top_p, {i: p.top_p for i, p in enumerate(params) if p.top_p < 1})


def cut_rows(weights: Tensor, keep: Callable[[Tensor, list[Any]], Tensor], values: dict[int, Any]) -> Tensor:
    """Let `keep` have the rows for which there is a value."""
    if len(values) == len(weights) > 0:
        return keep(weights, [*values.values()])
    if chosen := [*values]:
        weights[chosen] = keep(weights[chosen], [*values.values()])
    return weights


def keep_min_p(weights: Tensor, shares: list[float]) -> Tensor:
    """Zero what is less than the share shares[n] of the largest of row n of [N, V], in place."""
    floor = weights.amax(-1, keepdim=True) * column(shares, weights)
    return weights.masked_fill_(weights < floor, 0.0)


def keep_top_k(weights: Tensor, limits: list[int]) -> Tensor:
    """Zero all but the limits[n] likeliest of row n of [N, V], in place."""
    likeliest = weights.topk(min(max(limits) + 1, weights.shape[-1])).values
    return keep_likeliest(weights, *find_last(likeliest, column(limits, weights, torch.int64)))


def keep_top_p(weights: Tensor, shares: list[float]) -> Tensor:
    """Zero all but the fewest tokens that have the share shares[n] of the mass of row n of [N, V], in place."""
    total = split(weights).sum(-1).sum(-1, keepdim=True, dtype=torch.float64)
    return keep_likeliest(weights, *gather_mass(weights, column(shares, weights, torch.float64) * total))


def gather_mass(weights: Tensor, wanted: Tensor, num_candidates: int = NUM_CANDIDATES) -> tuple[Tensor, Tensor, Tensor]:
    """`find_last` of the fewest tokens of row n that weigh wanted[n] together.

    Only the likeliest are put in order; rows where they are not enough are asked again, with many more."""
    num_candidates = min(num_candidates, weights.shape[-1])
    likeliest = weights.topk(num_candidates).values
    counts = (likeliest.cumsum(-1, dtype=torch.float64) < wanted).sum(-1, keepdim=True) + 1
    found = find_last(likeliest, counts.clamp(max=num_candidates))
    short = (counts[:, 0] >= num_candidates).nonzero()[:, 0]
    if len(short) and num_candidates < weights.shape[-1]:
        more = gather_mass(weights[short], wanted[short], 16 * num_candidates)
        for ours, theirs in zip(found, more, strict=True):
            ours[short] = theirs
    return found


def find_last(likeliest: Tensor, counts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of likeliest [N, ...], in order: the counts[n]-th of row n, counts, and whether the one behind it is equal."""
    last = likeliest.gather(-1, counts - 1)
    behind = likeliest.gather(-1, counts.clamp(max=likeliest.shape[-1] - 1))
    return last, counts, (behind == last) & (counts < likeliest.shape[-1])


def keep_likeliest(weights: Tensor, last: Tensor, counts: Tensor, is_tied: Tensor) -> Tensor:
    """Zero all but counts[n] tokens of row n, the least of which weighs last[n]; of equal ones the first are kept."""
    if len(tied := is_tied[:, 0].nonzero()[:, 0]):
        ours = weights[tied]
        equal = ours == last[tied]
        room = counts[tied] - (ours > last[tied]).sum(-1, keepdim=True)
        weights[tied] = ours.masked_fill_(equal & (equal.cumsum(-1) > room), 0.0)
    return weights.masked_fill_(weights < last, 0.0)


def column(values: list[float] | list[int], like: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """[N, 1]"""
    return torch.tensor(values, dtype=dtype).to(like.device)[:, None]


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) that depends on nothing else: two rounds of a 64-bit mix, of which 52 bits are kept."""
    return (mix(mix(seed & MASK) + position) >> 12) / 2**52


def mix(x: int) -> int:
    """splitmix64 (Steele, Lea, Flood 2014): every output bit depends on every input bit."""
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)
