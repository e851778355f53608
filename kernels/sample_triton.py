r"""token = first v with running(v) > u * running(V - 1): penalties, cuts and the draw, one program to a row, no sort.

The same as `edit_spec` and `sample_spec` in sample.py, on a GPU. A row of 49,152 numbers stays in the cache that all
programs share, so a program walks along it as often as it likes, BV numbers at a time:

    copy, edit   only rows with a list or a mask: change the listed tokens of a copy            1 walk
    find_best    the largest logit, its first place, any NaN; a greedy row is done              1 walk
    lift         for each of top_k and top_p that is on: where to cut                           15 walks at most
    find         how far the cut's equals stay, if not all do; then the token                   1 to 3 walks

Weights lie in [0, 1], and such floats have the order of their bits, read as integers. So the smallest weight that stays
is found as one finds a number: ask in the middle, keep a half. A walk asks at three places at once and keeps a quarter;
15 walks know all 30 bits:

    cut = min { t : beyond(t) <= wanted }       beyond(t) = how many weights are > t (top_k), or their mass (top_p)

    weights, sorted    9  7 | 6  6  6  4  2     top_k = 3: beyond(6) = 2, beyond(5) = 5, so cut = 6,
    kept               9  7   6                 and room = 3 - 2 = 1: of the equals, the first by id
                            ^ cut, room 1       min_p is a cut too: just below min_p, without room

The list is ragged: a penalty touches the few hundred tokens that a text has, a bias a handful. Counts of all V tokens
would be as large as the logits. It has a token of a row once only, or two threads would write one number:

    starts    0      3 3          7     row r has starts[r] .. starts[r + 1]; row 1 has nothing, and is not copied
    ids       7 30 2   7 9 11 40        counts   -1 never seen, 0 in the prompt only, n: n times in the output

A mask of what is allowed has a bit a token, as xgrammar writes it. Random numbers are splitmix64's, two rounds over
(seed, position), of which 52 bits are kept: integers, so the same on every device. A thread adds a few weights in
float32, threads are added in float64, and the walks that draw are float64 throughout. Invariants: a row's token depends
on nothing but the row; what has weight 0 is never drawn; the logits stay as they are."""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .expect import OPTIONS, expect

ONE = tl.constexpr(0x3F800000)  # the bits of 1.0, the largest weight
LOG2_E = tl.constexpr(1.4426950408889634)
MAX_BLOCK = 4096  # with 8 warps, 16 numbers a thread: more of them, or half as many registers, and some spill


@triton.jit
def sample_kernel(
    p_logits, p_edited, p_tokens, p_temperature, p_min_p, p_top_k, p_top_p, p_seeds, p_positions,
    p_starts, p_ids, p_counts, p_bias, p_repetition, p_frequency, p_presence, p_allowed,
    logits_r, allowed_r, V, LISTED: tl.constexpr, MASKED: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """logits_r, allowed_r: the strides from row to row; without a list or a mask its pointers are None."""
    row = tl.program_id(0).to(tl.int64)
    p_row = p_logits + row * logits_r
    if LISTED | MASKED:
        start, end = 0, 0
        if LISTED:
            start, end = tl.load(p_starts + row), tl.load(p_starts + row + 1)
        if MASKED | (end > start):
            copy(p_row, p_edited + row * V, p_allowed, row * allowed_r, V, MASKED, BV)
            p_row = p_edited + row * V
        if LISTED:
            edit(
                p_row, p_ids, p_counts, p_bias, start, end, p_repetition + row, p_frequency + row, p_presence + row, BV
            )
    token, top = find_best(p_row, V, BV)
    temperature = tl.load(p_temperature + row).to(tl.float32)
    if (temperature > 0) & (token >= 0):
        u = uniform(tl.load(p_seeds + row), tl.load(p_positions + row))
        min_p, top_k, top_p = tl.load(p_min_p + row).to(tl.float32), tl.load(p_top_k + row), tl.load(p_top_p + row)
        token = draw(p_row, V, top, LOG2_E / temperature, min_p, top_k, top_p, u, BV)
    tl.store(p_tokens + row, token.to(tl.int64))


@triton.jit
def copy(p_row, p_copy, p_allowed, o_allowed, V, MASKED: tl.constexpr, BV: tl.constexpr):
    for v in range(0, V, BV):
        o_v = v + tl.arange(0, BV)  # [BV]
        b_x = tl.load(p_row + o_v, mask=o_v < V, other=0.0)
        if MASKED:
            b_word = tl.load(p_allowed + o_allowed + o_v // 32, mask=o_v < V, other=0)
            b_x = tl.where((b_word >> (o_v % 32)) & 1 == 1, b_x, float("-inf"))
        tl.store(p_copy + o_v, b_x, mask=o_v < V)
    tl.debug_barrier()  # what one thread wrote another one reads


@triton.jit
def edit(p_copy, p_ids, p_counts, p_bias, start, end, p_repetition, p_frequency, p_presence, BV: tl.constexpr):
    repetition, frequency = tl.load(p_repetition).to(tl.float32), tl.load(p_frequency).to(tl.float32)
    presence = tl.load(p_presence).to(tl.float32)
    for e in range(start, end, BV):
        o_e = e + tl.arange(0, BV)  # [BV], into the list
        m_e = o_e < end
        b_id, b_count = tl.load(p_ids + o_e, mask=m_e, other=0), tl.load(p_counts + o_e, mask=m_e, other=0)
        b_x = tl.load(p_copy + b_id, mask=m_e, other=0.0)
        b_repeated = tl.where(b_x > 0, tl.div_rn(b_x, repetition), b_x * repetition)
        b_x = tl.where(b_count >= 0, b_repeated, b_x)
        b_x -= frequency * tl.maximum(b_count, 0).to(tl.float32) + tl.where(b_count > 0, presence, 0.0)
        tl.store(p_copy + b_id, b_x + tl.load(p_bias + o_e, mask=m_e, other=0.0), mask=m_e)
    tl.debug_barrier()


@triton.jit
def find_best(p_row, V, BV: tl.constexpr):
    """-> the first id of the largest, -1 in a row with a NaN or of -inf alone; the largest."""
    b_best, b_id = tl.full([BV], float("-inf"), tl.float32), tl.arange(0, BV)
    b_nan = tl.zeros([BV], tl.int32)
    for v in range(0, V, BV):
        o_v = v + tl.arange(0, BV)
        b_x = tl.load(p_row + o_v, mask=o_v < V, other=float("-inf"))
        b_id, b_nan = tl.where(b_x > b_best, o_v, b_id), tl.where(b_x != b_x, 1, b_nan)
        b_best = tl.where(b_x > b_best, b_x, b_best)  # no NaN gets in
    top = tl.max(b_best, axis=0)
    token = tl.min(tl.where(b_best == top, b_id, V), axis=0)
    return tl.where((tl.max(b_nan, axis=0) > 0) | (top == float("-inf")), -1, token), top


@triton.jit
def draw(p_row, V, top, scale, min_p, top_k, top_p, u, BV: tl.constexpr):
    """-> the id, -1 if the largest logit is inf; scale: 1 / (temperature ln 2), which turns e ^ x into 2 ^ x."""
    token = -1
    if top < float("inf"):
        cut, room, end = tl.maximum(min_p.to(tl.int32, bitcast=True) - 1, 0), tl.full([], 0.0, tl.float64), 0
        if (top_k > 0) & (top_k < V):
            cut, room = lift(p_row, V, top, scale, cut, room, top_k.to(tl.float64), False, BV)
        if top_p < 1:
            above, _, _ = beyond(p_row, V, top, scale, cut, cut, cut, True, BV)
            wanted = top_p * (above + room * to_weight(cut))
            cut, room = lift(p_row, V, top, scale, cut, room, wanted, True, BV)
        if room > 0:
            end = find(p_row, V, top, scale, cut, 0, room - 1, True, BV) + 1
        total = tl.full([], 0.0, tl.float64)
        for v in range(0, V, BV):
            _, b_share = share(p_row, v, V, top, scale, cut, end, False, BV)
            total += tl.sum(b_share, axis=0)
        token = find(p_row, V, top, scale, cut, end, u * total, False, BV)
    return token


@triton.jit
def lift(p_row, V, top, scale, cut, room, wanted, MASS: tl.constexpr, BV: tl.constexpr):
    """-> the smallest t >= cut with beyond(t) <= wanted; how many of those that weigh just t stay."""
    lo, hi, above = cut, tl.full([], ONE, tl.int32), tl.full([], 0.0, tl.float64)  # above: beyond(hi)
    while (lo < hi) & (above < wanted):
        t2 = lo + (hi - lo) // 2
        t1, t3 = lo + (t2 - lo) // 2, t2 + (hi - t2) // 2
        above1, above2, above3 = beyond(p_row, V, top, scale, t1, t2, t3, MASS, BV)
        n = (above1 > wanted).to(tl.int32) + (above2 > wanted) + (above3 > wanted)  # how many are below the cut
        lo = tl.where(n == 0, lo, 1 + tl.where(n == 1, t1, tl.where(n == 2, t2, t3)))
        hi = tl.where(n == 0, t1, tl.where(n == 1, t2, tl.where(n == 2, t3, hi)))
        above = tl.where(n == 0, above1, tl.where(n == 1, above2, tl.where(n == 2, above3, above)))
    more = tl.ceil((wanted - above) / to_weight(hi)) if MASS else wanted - above
    return hi, tl.where(hi == cut, tl.minimum(room, more), more)


@triton.jit
def beyond(p_row, V, top, scale, t1, t2, t3, MASS: tl.constexpr, BV: tl.constexpr):
    """How many weights have bits above each t, or their mass; float64, and never more for a larger t."""
    b_1, b_2, b_3 = tl.zeros([BV], tl.float32), tl.zeros([BV], tl.float32), tl.zeros([BV], tl.float32)
    for v in range(0, V, BV):
        _, b_p, b_bits = weigh(p_row, v, V, top, scale, BV)
        b_unit = b_p if MASS else 1.0
        b_1 += tl.where(b_bits > t1, b_unit, 0.0)
        b_2 += tl.where(b_bits > t2, b_unit, 0.0)
        b_3 += tl.where(b_bits > t3, b_unit, 0.0)
    return tl.sum(b_1.to(tl.float64), axis=0), tl.sum(b_2.to(tl.float64), axis=0), tl.sum(b_3.to(tl.float64), axis=0)


@triton.jit
def find(p_row, V, top, scale, cut, end, target, EQUALS: tl.constexpr, BV: tl.constexpr):
    """-> the first id where the running sum of shares exceeds target, or else the last that has a share."""
    v, token, last, running = 0, V, 0, tl.full([], 0.0, tl.float64)
    while (v < V) & (token == V):
        o_v, b_share = share(p_row, v, V, top, scale, cut, end, EQUALS, BV)
        after = running + tl.sum(b_share, axis=0)
        if after > target:
            b_sum = running + tl.cumsum(b_share, axis=0)
            token = tl.min(tl.where((b_share > 0) & (b_sum > target), o_v, V), axis=0)
        last = tl.maximum(last, tl.max(tl.where(b_share > 0, o_v, 0), axis=0))
        running, v = after, v + BV
    return tl.minimum(token, last)


@triton.jit
def share(p_row, v, V, top, scale, cut, end, EQUALS: tl.constexpr, BV: tl.constexpr):
    """-> ids [BV]; 1 for each equal of the cut, or the weights that stay: beyond the cut, and its equals before end."""
    o_v, b_p, b_bits = weigh(p_row, v, V, top, scale, BV)
    if EQUALS:
        return o_v, tl.where((b_bits == cut) & (o_v < V), 1.0, 0.0).to(tl.float64)
    return o_v, tl.where((b_bits > cut) | ((b_bits == cut) & (o_v < end)), b_p, 0.0).to(tl.float64)


@triton.jit
def weigh(p_row, v, V, top, scale, BV: tl.constexpr):
    """-> ids [BV], their weights in [0, 1], and the weights' bits."""
    o_v = v + tl.arange(0, BV)
    b_x = tl.load(p_row + o_v, mask=o_v < V, other=float("-inf"))
    b_p = tl.exp2((b_x - top) * scale)
    return o_v, b_p, b_p.to(tl.int32, bitcast=True)


@triton.jit
def to_weight(bits):
    return bits.to(tl.float32, bitcast=True).to(tl.float64)


@triton.jit
def uniform(seed, position):
    """float64 in [0, 1), the same on every device."""
    return (mix(mix(seed.to(tl.uint64)) + position.to(tl.uint64)) >> 12).to(tl.float64) * 2.220446049250313e-16


@triton.jit
def mix(x):
    """splitmix64 (Steele, Lea, Flood 2014)"""
    x += 0x9E3779B97F4A7C15
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


class Asked(NamedTuple):
    """What each row asks for; floats are float64, integers int64."""

    temperature: Tensor  # [R], 0 is greedy
    min_p: Tensor  # [R], 0 is off
    top_k: Tensor  # [R], 0 or below, V or above: off
    top_p: Tensor  # [R], 1 is off
    seeds: Tensor  # [R]
    positions: Tensor  # [R]


class Edits(NamedTuple):
    """E tokens of R rows; floats of a row are float64. An id is in [0, V), and once in its row at most."""

    starts: Tensor  # [R + 1] int32
    ids: Tensor  # [E] int32
    counts: Tensor  # [E] int32: -1 never seen, 0 in the prompt only, n times in the output
    bias: Tensor  # [E] float32
    repetition: Tensor  # [R], 1 is off
    frequency: Tensor  # [R], 0 is off
    presence: Tensor  # [R], 0 is off


def sample(
    logits: Tensor, asked: Asked, edits: Edits | None = None, allowed: Tensor | None = None, block: int = MAX_BLOCK
) -> Tensor:
    """logits [R, V] float32, allowed [R, V / 32 rounded up] int32 -> [R] int64. The logits stay as they are."""
    check(logits, asked, edits, allowed)
    R, V = logits.shape
    tokens = torch.empty(R, dtype=torch.int64, device=logits.device)
    if not R:
        return tokens
    copied, columns = edits is not None or allowed is not None, min(block, triton.next_power_of_2(V))
    edited = torch.empty(R, V, dtype=torch.float32, device=logits.device) if copied else None
    sample_kernel[(R,)](
        logits, edited, tokens, *asked, *(edits or [None] * len(Edits._fields)), allowed,
        logits.stride(0), 0 if allowed is None else allowed.stride(0), V,
        LISTED=edits is not None, MASKED=allowed is not None, BV=columns,
        num_warps=max(1, columns // 512), **OPTIONS,
    )  # fmt: skip
    return tokens


def check(logits: Tensor, asked: Asked, edits: Edits | None, allowed: Tensor | None) -> None:
    """Raises ValueError with the name of whatever does not fit the logits."""
    expect("logits", logits, (None, None), like=logits, dtype=torch.float32)
    R, V = logits.shape
    if not V:
        raise ValueError(f"logits has shape {(R, V)}: no token to choose")
    for name, tensor in asked._asdict().items():
        dtype = torch.int64 if name in ("top_k", "seeds", "positions") else torch.float64
        expect(name, tensor, (R,), like=logits, dtype=dtype)
    if edits is not None:
        check_edits(logits, edits)
    if allowed is not None:
        expect("allowed", allowed, (R, -(-V // 32)), like=logits, dtype=torch.int32)


def check_edits(logits: Tensor, edits: Edits) -> None:
    R, E = len(logits), edits.ids.numel()
    expect("starts", edits.starts, (R + 1,), like=logits, dtype=torch.int32)
    expect("ids", edits.ids, (E,), like=logits, dtype=torch.int32)
    expect("counts", edits.counts, (E,), like=logits, dtype=torch.int32)
    expect("bias", edits.bias, (E,), like=logits)
    for name in ("repetition", "frequency", "presence"):
        expect(name, getattr(edits, name), (R,), like=logits, dtype=torch.float64)
