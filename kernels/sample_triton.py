r"""token = first v with running(v) > u * running(V - 1): penalties, cuts and the draw, one program to a row, no sort.

The same as `edit_spec` and `sample_spec` in sample.py, on a GPU. A row of 49,152 numbers stays in the cache that all
programs share, so a program walks along it as often as it likes, BV numbers at a time:

    copy, edit   only rows with a list or a mask: change the listed tokens of a copy            1 walk
    find_best    the largest logit, its first place, any NaN; a greedy row is done              1 walk
    draw         cuts, and the inverse of the running sum (draw_triton.py)                      2 walks, 15 more a cut

The list is ragged: a penalty touches the few hundred tokens that a text has, a bias a handful. Counts of all V tokens
would be as large as the logits. It has a token of a row once only, or two threads would write one number:

    starts    0      3 3          7     row r has starts[r] .. starts[r + 1]; row 1 has nothing, and is not copied
    ids       7 30 2   7 9 11 40        counts   -1 never seen, 0 in the prompt only, n: n times in the output

A mask of what is allowed has a bit a token, as xgrammar writes it. Invariants: a row's token depends on nothing but the
row; the logits stay as they are."""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .draw_triton import draw, uniform
from .expect import OPTIONS, expect

SLICES = [  # columns and lists may be slices of one transfer: where they begin must not make another kernel
    *("p_temperature", "p_min_p", "p_top_k", "p_top_p", "p_seeds", "p_positions"),
    *("p_starts", "p_ids", "p_counts", "p_bias", "p_repetition", "p_frequency", "p_presence"),
]
LOG2_E = tl.constexpr(1.4426950408889634)
MAX_BLOCK = 4096  # with 8 warps, 16 numbers a thread: more of them, or half as many registers, and some spill


@triton.jit(do_not_specialize_on_alignment=SLICES)
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
            edit(p_row, p_ids, p_counts, p_bias, start, end, p_repetition, p_frequency, p_presence, row, BV)
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
def edit(p_copy, p_ids, p_counts, p_bias, start, end, p_repetition, p_frequency, p_presence, row, BV: tl.constexpr):
    repetition, frequency = tl.load(p_repetition + row).to(tl.float32), tl.load(p_frequency + row).to(tl.float32)
    presence = tl.load(p_presence + row).to(tl.float32)
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
