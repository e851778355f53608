"""A row of logits becomes one token: the likeliest, or a draw that depends on nothing but (seed, position).

    logits -> processors.py -> divided by temperature -> 2 ** (log2 e x) -> weights p      float32
    min_p   drop what is less likely than min_p times the likeliest
    top_k   keep the k likeliest
    top_p   of what is left, keep the fewest that have top_p of its mass
    u = uniform(seed, position) in [0, 1)

    p        |--- 0 ---|- 1 -|------- 2 -------|- 3 -|
    u * sum   ................^                           -> token 2: the first whose running sum exceeds it

Of equally likely tokens the smaller id is kept first. Rows that ask for the same kind of things go together, so that
nobody pays for what others want: greedy rows cost one look, and no row is sorted on a CPU (kernels/draw.py). On a GPU
all of this is one Triton kernel (triton_sampling.py); `choose_sample` says who draws, once. Invariant: a row's token
does not depend on the other rows, so a request draws the same alone and in company. A row with a NaN gives NO_TOKEN.
Order and meaning are vLLM's; what the model itself thought of a token is in `logprobs.py`. (From level 01.)"""

import math
from collections.abc import Callable, Iterator
from itertools import groupby

import torch
from torch import Tensor

from .batch import NO_TOKEN, Row
from .kernels.draw import cut_cpu, cut_spec, pick_cpu, pick_spec
from .processors import process
from .sampling_params import SamplingParams

Sample = Callable[[Tensor, list[Row]], list[int]]

MASK = 2**64 - 1
LOG2_E = 1 / math.log(2)  # e ** x = 2 ** (x LOG2_E)
NUM_ROWS = 16  # worked on at once: their logits stay in a CPU's cache


def choose_sample(backend: str) -> Sample:
    """backend: torch or triton."""
    if backend == "triton":
        from . import triton_sampling  # late: to import this is to import Triton

        return triton_sampling.sample
    return sample


def sample(logits: Tensor, rows: list[Row]) -> list[int]:
    """One token id for each row, from float32 logits [R + Q, V]: from R on nothing is drawn."""
    tokens = torch.empty(len(rows), dtype=torch.int64)
    for part in alike(rows):
        ours = [rows[i] for i in part]
        processed = process(take(logits, part), ours)
        tokens[part] = (likeliest(processed) if ours[0].params.greedy else draw(processed, ours)[0]).cpu()
    result: list[int] = tokens.tolist()
    return result


def alike(rows: list[Row]) -> Iterator[list[int]]:
    """Which rows ask for the same kind of things, NUM_ROWS at most at a time."""

    def kind(i: int) -> tuple[bool, bool, bool]:
        return rows[i].has_wishes, rows[i].params.greedy, rows[i].params.cuts

    for _, group in groupby(sorted(range(len(rows)), key=kind), key=kind):
        part = list(group)
        yield from (part[start : start + NUM_ROWS] for start in range(0, len(part), NUM_ROWS))


def take(logits: Tensor, part: list[int]) -> Tensor:
    """These rows of [R, V]; neighbours need no copy."""
    first, last = part[0], part[-1]
    if last - first + 1 == len(part):
        return logits[first : last + 1]
    return logits.index_select(0, torch.tensor(part).to(logits.device))  # copies rows; logits[part], numbers


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
    scale = column([LOG2_E / p.temperature for p in params], logits)[:, None]
    scaled = logits - logits.amax(-1, keepdim=True)  # the best first at 0: no overflow at 1e-5
    return cut(scaled.mul_(scale).exp2_(), params)  # exp takes a hundred times as long where the result is 0


def cut(weights: Tensor, params: list[SamplingParams]) -> Tensor:
    """Zero what min_p, top_k and top_p exclude from [N, V]."""
    if not any(p.cuts for p in params):
        return weights
    min_p = column([p.min_p for p in params], weights)
    top_k = column([min(p.top_k, weights.shape[-1]) for p in params], weights, torch.int64)
    top_p = column([p.top_p for p in params], weights, torch.float64)
    return (cut_cpu if weights.is_cpu else cut_spec)(weights, min_p, top_k, top_p)


def pick(weights: Tensor, numbers: list[float]) -> Tensor:
    """[N, V] -> [N], by inverting each row's cumulative distribution at its own random number in [0, 1)."""
    return (pick_cpu if weights.is_cpu else pick_spec)(weights, column(numbers, weights, torch.float64))


def column(values: list[float] | list[int], like: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """[N]"""
    return torch.tensor(values, dtype=dtype).to(like.device)


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) that depends on nothing else: two rounds of a 64-bit mix, of which 52 bits are kept."""
    return (mix(mix(seed & MASK) + position) >> 12) / 2**52


def mix(x: int) -> int:
    """splitmix64 (Steele, Lea, Flood 2014): every output bit depends on every input bit."""
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)
