"""cut = min { t : beyond(t) <= wanted }, beyond(t): how many weights are > t, or their mass. Found digit by digit.

    weights, sorted    9  7 | 6  6  6  4  2     top_k = 3: beyond(6) = 2, beyond(5) = 5, so cut = 6,
    kept               9  7   6                 and room = 3 - 2 = 1: of the equals, the first by id
                            ^ cut, room 1       min_p is a cut too: just below min_p, without room

Weights lie in [0, 1], the largest is 1, and such floats have the order of their bits, read as integers: 30 bits, three
digits of 10. A walk along the row puts into each digit's bucket how many weights have it, or their mass; from the
highest bucket down, the one where it becomes too much holds the cut:

    digit 1    | 0 |  2 | 17 | 5 | 1 | 0 |      wanted 10: 1 + 5 is not too much, 1 + 5 + 17 is
                           ^                    digits 2 and 3 sort this bucket alone

Before that a quick walk leaves behind what cannot be the cut: whatever is below the (k + 1)-th of the blocks' largest,
or so light that all of it together does not matter. A row is walked along a few times, whatever is asked of it, where
sorting costs 50 times a walk. The token is found in two steps, too: first its block of 128, by the blocks' sums, then
itself. Sums are float64. The specification sorts; both keep the same weights and find the same token. A row with a NaN
stays one, and has no token: -1. (The same on a GPU: draw_triton.py.)"""

import numpy as np
import torch
from numba import prange
from numpy.typing import NDArray
from torch import Tensor

from .jit import Floats, Thread, compiled, num_threads, share_of

Doubles = NDArray[np.float64]
Bits = NDArray[np.int32]  # of floats: a weight's order
Cut = tuple[int, float]  # cut: these bits and all below go, except for so many of just these bits: room
Desk = tuple[Doubles, Bits]  # to work on: a bucket for each digit, and a row of candidates [V]

DIGIT = 10  # bits
BLOCK = 128  # weights that are summed at once


def cut_spec(weights: Tensor, min_p: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """weights [N, V], what each row asks for [N]; off are min_p 0, top_k 0 or below, top_p 1 -> [N, V]"""
    likeliest = weights.sort(dim=-1, descending=True, stable=True)
    kept = likeliest.values.masked_fill(likeliest.values < min_p[:, None].float(), 0).double()
    place = torch.arange(weights.shape[-1], device=weights.device)
    kept.masked_fill_((place >= top_k[:, None]) & (top_k[:, None] > 0), 0)
    sums = torch.nn.functional.pad(kept.cumsum(-1), (1, 0))  # [N, 1 + V], of all before
    kept.masked_fill_((sums[:, :-1] >= top_p[:, None] * sums[:, -1:]) & (top_p[:, None] < 1), 0)
    return torch.zeros_like(weights).scatter(-1, likeliest.indices, kept.float())


def pick_spec(weights: Tensor, numbers: Tensor) -> Tensor:
    """weights [N, V], a number in [0, 1) for each row [N] -> the token it falls to [N]"""
    running = weights.double().cumsum(-1)
    tokens = torch.searchsorted(running, numbers[:, None] * running[:, -1:], right=True)[:, 0]
    return tokens.masked_fill(~(running[:, -1] > 0), -1)


def cut_cpu(weights: Tensor, min_p: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """The same as cut_spec, in place, on float32 tensors of a CPU."""
    assert weights.is_contiguous(), f"strides {weights.stride()} of {weights.shape}"
    numbers: Floats = weights.numpy()
    below = (min_p.float().numpy().view(np.int32) - 1).clip(0)
    asked = below, top_k.numpy(), top_p.numpy()
    cut_all(numbers, numbers.view(np.int32), *asked, num_threads(weights.numel()))
    return weights


def pick_cpu(weights: Tensor, numbers: Tensor) -> Tensor:
    """The same as pick_spec, on float32 tensors of a CPU."""
    assert weights.is_contiguous(), f"strides {weights.stride()} of {weights.shape}"
    tokens = torch.empty(len(weights), dtype=torch.int64)
    pick_all(weights.numpy(), numbers.numpy(), tokens.numpy(), num_threads(weights.numel()))
    return tokens


@compiled(parallel=True)
def cut_all(weights: Floats, bits: Bits, below: Bits, top_k: NDArray[np.int64], top_p: Doubles, threads: int) -> None:
    if threads == 1:
        cut_share(weights, bits, below, top_k, top_p, np.int64(0), threads)
    else:
        for thread in prange(threads):
            cut_share(weights, bits, below, top_k, top_p, np.int64(thread), threads)


@compiled()
def cut_share(
    weights: Floats, bits: Bits, below: Bits, top_k: NDArray[np.int64], top_p: Doubles, thread: Thread, threads: int
) -> None:
    """A thread's rows of weights [N, V]; bits are the same memory."""
    desk = np.empty(1 << DIGIT, np.float64), np.empty(bits.shape[1], np.int32)
    start, end = share_of(len(weights), thread, threads)
    for n in range(start, end):
        cut_row(weights[n], bits[n], int(below[n]), top_k[n], top_p[n], desk)


@compiled()
def cut_row(weights: Floats, bits: Bits, cut: int, top_k: int, top_p: float, desk: Desk) -> None:
    room = 0.0
    if 0 < top_k < len(weights):
        cut, room = lift(bits, (cut, room), max(cut, kth_top(bits, top_k + 1) - 1), float(top_k), False, desk)
    if top_p < 1:
        mass = mass_beyond(weights, bits, cut) + room * to_weight(cut)
        least = (1 - top_p) * mass / len(weights)  # all that weigh less, together, are not enough to reach the cut
        cut, room = lift(bits, (cut, room), max(cut, to_bits(least) - 1), top_p * mass, True, desk)
    if cut > 0:
        keep(bits, cut, room)


@compiled()
def kth_top(bits: Bits, k: int) -> int:
    """No more than the k-th largest: so many blocks have one that is no less. 0 if there are not so many."""
    num_blocks = len(bits) // BLOCK
    if k > num_blocks:
        return 0
    tops = np.zeros(num_blocks, np.int32)
    for b in range(num_blocks):
        for v in range(b * BLOCK, (b + 1) * BLOCK):
            tops[b] = max(tops[b], bits[v])
    tops.sort()
    return int(tops[num_blocks - k])


@compiled()
def lift(bits: Bits, old: Cut, least: int, wanted: float, by_mass: bool, desk: Desk) -> tuple[int, float]:
    """-> the smallest t >= cut with beyond(t) <= wanted, and room. `least`: cut, or beyond(least) is too much."""
    (cut, room), beyond, known = old, 0.0, 0  # known: the digits so far
    buckets, few = desk
    num_few = sift(bits, np.int32(least), few)
    for shift in (2 * DIGIT, DIGIT, 0):
        fill(few, num_few, known, shift, by_mass, buckets)
        digit = len(buckets) - 1
        while digit > 0 and beyond + buckets[digit] <= wanted:
            beyond += buckets[digit]
            digit -= 1
        known = known << DIGIT | digit
    t = max(cut, known)
    more = wanted - beyond
    if by_mass:
        more = np.ceil(more / to_weight(t)) if t > 0 else 0.0
    return t, min(room, more) if t == cut else more


@compiled()
def sift(bits: Bits, least: np.int32, few: Bits) -> int:
    """All above `least` into few [V], in their order; how many. (Each is written; no branch to be guessed.)"""
    n = 0
    for v in range(len(bits)):
        few[n] = bits[v]
        n += 1 if bits[v] > least else 0
    return n


@compiled()
def fill(few: Bits, num_few: int, known: int, shift: int, by_mass: bool, buckets: Doubles) -> None:
    """For each next digit, how many weights have it behind the known ones, or their mass."""
    buckets[:] = 0.0
    for i in range(num_few):
        if few[i] >> (shift + DIGIT) == known:
            buckets[few[i] >> shift & ((1 << DIGIT) - 1)] += to_weight(few[i]) if by_mass else 1.0


@compiled()
def mass_beyond(weights: Floats, bits: Bits, cut: int) -> float:
    mass, limit = 0.0, np.int32(cut)
    for v in range(len(weights)):
        mass += np.float64(weights[v]) if bits[v] > limit else 0.0
    return mass


@compiled()
def keep(bits: Bits, cut: int, room: float) -> None:
    """Zero what is not beyond the cut, but for as many of its equals as there is room for; a NaN stays."""
    limit, num_equal = np.int32(cut), 0
    for v in range(len(bits)):
        num_equal += 1 if bits[v] == limit else 0
    last = limit - np.int32(1 if num_equal <= room else 0)
    if room <= 0 or num_equal <= room:
        for v in range(len(bits)):
            bits[v] = 0 if 0 <= bits[v] <= last else bits[v]
        return
    left = room
    for v in range(len(bits)):
        if bits[v] == limit and left > 0:
            left -= 1
        elif 0 <= bits[v] <= limit:
            bits[v] = 0


@compiled()
def to_weight(bits: int) -> float:
    return float(np.int32(bits).view(np.float32))


@compiled()
def to_bits(weight: float) -> int:
    return int(np.float32(weight).view(np.int32))


@compiled(parallel=True)
def pick_all(weights: Floats, numbers: Doubles, tokens: NDArray[np.int64], threads: int) -> None:
    if threads == 1:
        pick_share(weights, numbers, tokens, np.int64(0), threads)
    else:
        for thread in prange(threads):
            pick_share(weights, numbers, tokens, np.int64(thread), threads)


@compiled()
def pick_share(weights: Floats, numbers: Doubles, tokens: NDArray[np.int64], thread: Thread, threads: int) -> None:
    """A thread's rows of weights [N, V]."""
    running = np.empty((weights.shape[1] + BLOCK - 1) // BLOCK, np.float64)
    start, end = share_of(len(weights), thread, threads)
    for n in range(start, end):
        tokens[n] = pick_row(weights[n], numbers[n], running)


@compiled()
def pick_row(weights: Floats, number: float, running: Doubles) -> int:
    """running [V / BLOCK] is filled with the sums of all blocks up to each."""
    total = 0.0
    for b in range(len(running)):
        for v in range(b * BLOCK, min((b + 1) * BLOCK, len(weights))):
            total += np.float64(weights[v])
        running[b] = total
    if not total > 0:
        return -1
    b = int(np.searchsorted(running, number * total, side="right"))
    before = running[b - 1] if b > 0 else 0.0
    return b * BLOCK + pick_within(weights[b * BLOCK : (b + 1) * BLOCK], number * total - before)


@compiled()
def pick_within(weights: Floats, target: float) -> int:
    """The first with a running sum beyond target; as sums are rounded, no later than the last that has a weight."""
    running, last = 0.0, 0
    for v in range(len(weights)):
        running += np.float64(weights[v])
        last = v if weights[v] > 0 else last
        if running > target:
            return last
    return last
