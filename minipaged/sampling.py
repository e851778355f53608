"""A row of logits becomes one token: the likeliest, or a draw that depends on nothing but (seed, position).

    logits -> processors.py -> divided by temperature -> softmax -> probabilities p        float32
    min_p   drop what is less likely than min_p times the likeliest
    top_k   keep the k likeliest
    top_p   of what is left, keep the fewest that have top_p of its mass
    u = uniform(seed, position) in [0, 1)

    p        |--- 0 ---|- 1 -|------- 2 -------|- 3 -|
    u * sum   ................^                           -> token 2: the first whose running sum exceeds it

Of equally likely tokens the smaller id is kept first. Running sums are float64. Invariant: a row's token does not
depend on the other rows, so a request draws the same alone and in company. A row with a NaN gives NO_TOKEN. Order and
meaning are vLLM's; what the model itself thought of a token is in `logprobs.py`. (From level 01.)"""

import torch
from torch import Tensor

from .batch import NO_TOKEN, Row
from .processors import process
from .sampling_params import SamplingParams

MASK = 2**64 - 1
NUM_CANDIDATES = 1024  # enough for top_p nearly always, and far cheaper than sorting 49,152


def sample(logits: Tensor, rows: list[Row]) -> list[int]:
    """One token id for each row, from float32 logits [R + Q, V]: from R on nothing is drawn."""
    return choose_tokens(process(logits[: len(rows)], rows), rows) if rows else []


def choose_tokens(logits: Tensor, rows: list[Row]) -> list[int]:
    """[R, V], processed -> R tokens; greedy rows cost neither softmax nor sort."""
    tokens = likeliest(logits)
    if random := [i for i, row in enumerate(rows) if not row.params.greedy]:
        tokens[random], _ = draw(logits[random], [rows[i] for i in random])
    result: list[int] = tokens.tolist()
    return result


def likeliest(logits: Tensor) -> Tensor:
    """[N, V] -> [N]"""
    best, tokens = logits.max(dim=-1)  # a NaN is the maximum of its row
    return tokens.masked_fill(best.isnan() | (best == -torch.inf), NO_TOKEN)


def draw(logits: Tensor, rows: list[Row]) -> tuple[Tensor, Tensor]:
    """[N, V] -> a token each [N], and the weights that it was drawn with [N, V]."""
    weights = distribution(logits, [row.params for row in rows])
    return pick(weights, [uniform(row.seed, row.position) for row in rows]), weights


def distribution(logits: Tensor, params: list[SamplingParams]) -> Tensor:
    """What is drawn from, [N, V] -> [N, V]: after a cut the rows need no longer add up to 1. None may be greedy."""
    temperature = column([p.temperature for p in params], logits)
    scaled = (logits - logits.amax(-1, keepdim=True)) / temperature  # the best first at 0: no overflow at 1e-5
    return cut(scaled.softmax(-1), params)


def pick(weights: Tensor, numbers: list[float]) -> Tensor:
    """[N, V] -> [N], by inverting each row's cumulative distribution at its own random number in [0, 1)."""
    sums = weights.cumsum(-1, dtype=torch.float64)  # [N, V]
    tokens = torch.searchsorted(sums, column(numbers, weights, torch.float64) * sums[:, -1:], right=True)[:, 0]
    return tokens.masked_fill(~(sums[:, -1] > 0), NO_TOKEN)  # the sum of a NaN's row is NaN, or 0 after a cut


def cut(probs: Tensor, params: list[SamplingParams]) -> Tensor:
    """Zero what min_p, top_k and top_p exclude from [N, V]; who asks for none of them pays for none."""
    if any(p.min_p > 0 for p in params):
        floor = probs.amax(-1, keepdim=True) * column([p.min_p for p in params], probs)
        probs = probs.masked_fill(probs < floor, 0.0)
    if chosen := [i for i, p in enumerate(params) if 0 < p.top_k < probs.shape[-1]]:
        probs[chosen] = keep_top_k(probs[chosen], [params[i].top_k for i in chosen])
    if chosen := [i for i, p in enumerate(params) if p.top_p < 1]:
        probs[chosen] = keep_top_p(probs[chosen], [params[i].top_p for i in chosen])
    return probs


def keep_top_k(probs: Tensor, limits: list[int]) -> Tensor:
    """Zero all but the limits[n] likeliest of row n of [N, V]."""
    return keep_likeliest(probs, probs.topk(max(limits)).values, column(limits, probs, torch.int64))


def keep_top_p(probs: Tensor, shares: list[float]) -> Tensor:
    """Zero all but the fewest tokens that have the share shares[n] of the mass of row n of [N, V]."""
    wanted = column(shares, probs, torch.float64) * probs.sum(-1, keepdim=True, dtype=torch.float64)
    likeliest = probs.topk(min(NUM_CANDIDATES, probs.shape[-1])).values
    if (likeliest.sum(-1, keepdim=True, dtype=torch.float64) < wanted).any():
        likeliest = probs.sort(descending=True).values
    sums = likeliest.cumsum(-1, dtype=torch.float64)
    counts = (sums < wanted).sum(-1, keepdim=True) + 1
    return keep_likeliest(probs, likeliest, counts.clamp(max=likeliest.shape[-1]))


def keep_likeliest(probs: Tensor, likeliest: Tensor, counts: Tensor) -> Tensor:
    """Zero all but counts[n] tokens of row n; likeliest [N, ...] begins with their probabilities, in order."""
    last = likeliest.gather(-1, counts - 1)  # [N, 1], the smallest that is kept
    above, equal = probs > last, probs == last
    room = counts - above.sum(-1, keepdim=True)
    return probs.masked_fill(~(above | (equal & (equal.cumsum(-1) <= room))), 0.0)


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
