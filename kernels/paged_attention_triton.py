r"""out[t] = softmax(q[t] . keys / sqrt(D)) . values, over the keys that token t of its sequence may see.

The same as `paged_attention_spec` in paged_attention.py, on a GPU, without ever holding a row of scores. A program
answers for one sequence, one kv head and a few of the sequence's tokens in this step; it walks along their keys:

    rows       its tokens times the G query heads that share the kv head     [BR, BD]   row r: token r // G, head r % G
    keys       BN at a time, gathered from wherever their blocks are         [BN, BD]
                     (BD: the power of two at or above D, at least 16)
                     table    | 7 | 2 | 5 | 9 | 4 | 1 |        P slots in each
                     keys     |-------========-------|         BN = 2 P: each run is one step, two blocks
                                 lo ^            hi ^          steps begin at lo // BN * BN,
                                                               but nothing outside lo .. hi is ever read

    for each BN keys         scores = rows . keys / (sqrt(D) ln 2), hidden ones -inf     [BR, BN]
    (online softmax)         top' = max(top, scores);  weights = 2 ^ (scores - top');  shrink = 2 ^ (top - top')
                             acc = acc * shrink + weights . values;  total = total * shrink + sum(weights)
    at the end               out = acc / total     (dividing by ln 2 turns e ^ x into 2 ^ x, which the hardware has)

A decode of a long sequence has a handful of rows and thousands of keys: too few programs to keep a GPU busy. Then the
walk is cut into splits, each a program with a result and a log2(sum 2 ^ scores), its lse, and a second kernel weighs
the results together (flash-decoding):

    lo [ split 0 | split 1 | split 2 | split 3 ] hi     out = sum over i of out_i 2 ^ lse_i / sum over i of 2 ^ lse_i

To read Triton: kernel[grid](...) starts a grid of programs, and `program_id` tells each which it is. Names stand for
whole tiles, computed at once; a pointer plus a tile of offsets is a tile of pointers; `load` gives `other` where the
mask is false. A constexpr is fixed when the kernel is compiled. p_ is a pointer (or a tile of them), o_ indices along
an axis or offsets made of them, m_ a mask of what exists, b_ what was loaded.

Prompts, decodes and whatever is between go through the same launch. Invariants: keys outside lo .. hi may be NaN, they
are not read; a row that sees nothing is zero; sums are float32; offsets into the pool are 64 bits wide."""

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .expect import OPTIONS, expect, expect_pool, scale_strides
from .narrow import Scales

MAX_SPLITS = 32
MIN_SPLIT_LEN = 512  # keys: fewer are not worth a program and its share of the combining


@triton.jit
def paged_attention_kernel(
    p_q, p_keys, p_values, p_key_scales, p_value_scales, p_tables, p_starts, p_lens, p_out, p_lse,
    scales_b, scales_h, q_t, q_h, keys_b, keys_h, keys_p, values_b, values_h, values_p, tables_s, out_t, out_h,
    lse_t, lse_h, scale, window, D: tl.constexpr,  # above: strides, x_t of x from token to token, x_h from head to head
    G: tl.constexpr, P: tl.constexpr, BR: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    tile, split = tl.program_id(0) // SPLITS, tl.program_id(0) % SPLITS
    kv_head, seq = tl.program_id(1).to(tl.int64), tl.program_id(2)
    start = tl.load(p_starts + seq).to(tl.int64)
    num_queries = (tl.load(p_starts + seq + 1) - start).to(tl.int32)
    first, before = tile * (BR // G), tl.load(p_lens + seq) - num_queries
    if first >= num_queries:
        return
    o_row, o_d = tl.arange(0, BR), tl.arange(0, BD)[None, :]  # [BR], [1, BD]
    o_token, o_head = first + o_row // G, kv_head * G + o_row % G  # [BR]
    m_row = (o_row < BR // G * G) & (o_token < num_queries)
    mask = m_row[:, None] & (o_d < D)
    b_q = tl.load((p_q + (start + o_token) * q_t + o_head * q_h)[:, None] + o_d, mask=mask, other=0.0)  # [BR, BD]
    lo, begin, hi = span(before + first, tl.minimum(BR // G, num_queries - first), window, split, BN, SPLITS)
    acc, lse = walk(
        b_q, o_d, before + o_token, p_keys + kv_head * keys_h, p_values + kv_head * values_h, p_tables + seq * tables_s,
        p_key_scales, p_value_scales, kv_head * scales_h, scales_b, keys_b, keys_p, values_b, values_p,
        lo, begin, hi, scale, window, D, P, BN)  # fmt: skip
    tl.store((p_out + (start + o_token) * out_t + o_head * out_h + split * D)[:, None] + o_d, acc, mask=mask)
    tl.store(p_lse + (start + o_token) * lse_t + o_head * lse_h + split, lse, mask=m_row & (SPLITS > 1))


@triton.jit
def span(position, num_tokens, window, split, BN: tl.constexpr, SPLITS: tl.constexpr):
    """-> lo, begin, end: these tokens see no key before lo; this split takes begin .. end, in whole steps of BN."""
    lo, hi = tl.maximum(position - window + 1, 0), tl.maximum(position + num_tokens, 0)
    num_steps = tl.maximum(hi - lo // BN * BN + BN - 1, 0) // BN
    share = (num_steps + SPLITS - 1) // SPLITS * BN
    begin = lo // BN * BN + split * share
    return lo, begin, tl.minimum(hi, begin + share)


@triton.jit
def walk(
    b_q, o_d, position, p_keys, p_values, p_table, p_key_scales, p_value_scales, o_head, scales_b, keys_b, keys_p,
    values_b, values_p, lo, begin, hi, scale, window, D: tl.constexpr, P: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Rows [BR, BD] past the keys begin .. hi: their results [BR, BD], and log2(sum of 2 ^ scores) [BR]."""
    top, total = tl.full([b_q.shape[0]], float("-inf"), tl.float32), tl.zeros([b_q.shape[0]], tl.float32)
    acc = tl.zeros(b_q.shape, tl.float32)
    for n in range(begin, hi, BN):
        o_key = n + tl.arange(0, BN)  # [BN]
        m_key = (o_key >= lo) & (o_key < hi)
        b_block, o_slot = tl.load(p_table + o_key // P, mask=m_key, other=0).to(tl.int64), (o_key % P).to(tl.int64)
        mask, o_scale = m_key[:, None] & (o_d < D), o_head + b_block * scales_b + o_slot
        b_k = tl.load((p_keys + b_block * keys_b + o_slot * keys_p)[:, None] + o_d, mask=mask, other=0.0).to(b_q.dtype)
        distance = position[:, None] - o_key[None, :]  # [BR, BN]
        scores = scaled(tl.dot(b_q, tl.trans(b_k), input_precision="ieee") * scale, p_key_scales, o_scale, m_key)
        scores = tl.where((distance >= 0) & (distance < window), scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, axis=1))
        base = tl.where(new_top == float("-inf"), 0.0, new_top)  # nothing seen yet: -inf - -inf would be NaN
        weights, shrink = tl.exp2(scores - base[:, None]), tl.exp2(top - base)
        b_v = tl.load((p_values + b_block * values_b + o_slot * values_p)[:, None] + o_d, mask=mask, other=0.0)
        total, top = total * shrink + tl.sum(weights, axis=1), new_top
        weights = scaled(weights, p_value_scales, o_scale, m_key).to(b_q.dtype)
        acc = tl.dot(weights, b_v.to(b_q.dtype), acc * shrink[:, None], input_precision="ieee")
    seen = tl.where(total > 0, total, 1.0)
    return acc / seen[:, None], top + tl.log2(seen)


@triton.jit
def scaled(b_x, p_scales, o_scale, m_key):
    """[BR, BN], each column times its key's scale (a key times a number: so is its score); as it is, without scales."""
    if p_scales is not None:
        b_x *= tl.load(p_scales + o_scale, mask=m_key, other=0.0)[None, :]
    return b_x


@triton.jit
def combine_kernel(p_parts, p_lse, p_out, num_heads, head_dim, BD: tl.constexpr, SPLITS: tl.constexpr):
    """parts [T, H, SPLITS, D] and lse [T, H, SPLITS] -> out [T, H, D], one program for each token and head."""
    row = tl.program_id(0).to(tl.int64) * num_heads + tl.program_id(1)
    o_split, o_d = tl.arange(0, SPLITS), tl.arange(0, BD)
    m_d = o_d < head_dim
    b_lse = tl.load(p_lse + row * SPLITS + o_split)  # [SPLITS]
    top = tl.max(b_lse, axis=0)
    b_share = tl.exp2(b_lse - tl.where(top == float("-inf"), 0.0, top))  # [SPLITS]
    p_part = p_parts + (row * SPLITS + o_split) * head_dim
    b_part = tl.load(p_part[:, None] + o_d[None, :], mask=m_d[None, :], other=0.0)  # [SPLITS, BD]
    total = tl.sum(b_share, axis=0)
    out = tl.sum(b_part * b_share[:, None], axis=0) / tl.where(total > 0, total, 1.0)
    tl.store(p_out + row * head_dim + o_d, out, mask=m_d)


class Tiles(NamedTuple):
    """How a launch is cut: rows to a program, keys at a time, splits to a walk; warps and stages are Triton's."""

    rows: int
    keys: int
    splits: int
    warps: int
    stages: int


def paged_attention(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    tables: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    window: int,
    max_query_len: int,
    max_seq_len: int,
    tiles: Tiles | None = None,
    scales: Scales | None = None,
) -> Tensor:
    """q [T, H, D], keys and values [B, K, P, D], narrow ones' scales [B, K, P], tables [S, longest] -> [T, H, D]."""
    check(q, keys, values, tables, query_start_loc, seq_lens, scales)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if not out.numel():
        return out
    tiles = tiles or choose_tiles(q, keys, len(seq_lens), max_query_len, min(max_seq_len, window + max_query_len))
    parts, lse = (out[:, :, None], out) if tiles.splits == 1 else new_parts(q, tiles.splits)
    pool, ragged = (q, keys, values, *(scales or (None, None))), (tables, query_start_loc, seq_lens)
    launch(pool, ragged, scale_strides(scales), parts, lse, window, max_query_len, tiles)
    if tiles.splits > 1:
        combine_kernel[q.shape[:2]](parts, lse, out, *q.shape[1:], BD=padded(q), SPLITS=tiles.splits, **OPTIONS)
    return out


def check(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    tables: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    scales: Scales | None,
) -> None:
    """Raises ValueError with the name of whatever does not fit the others."""
    expect("q", q, (None, None, None), like=q)
    (_, H, D), S = q.shape, len(seq_lens)
    expect_pool(keys, values, (None, None, None, D), scales, like=q)
    for name, tensor, shape in (
        ("tables", tables, (S, None)),
        ("query_start_loc", query_start_loc, (S + 1,)),
        ("seq_lens", seq_lens, (S,)),
    ):
        expect(name, tensor, shape, like=q, dtype=torch.int32)
    if D > 256 or H % keys.shape[1]:
        raise ValueError(f"{H} query heads of {D} over {keys.shape[1]} kv heads: D is at most 256, H a multiple of K")


def new_parts(q: Tensor, splits: int) -> tuple[Tensor, Tensor]:
    """For the results of each split [T, H, SPLITS, D] and their sums [T, H, SPLITS], in float32."""
    parts = torch.empty(*q.shape[:2], splits, q.shape[2], dtype=torch.float32, device=q.device)
    return parts, torch.empty(parts.shape[:3], dtype=torch.float32, device=q.device)


def launch(
    pool: tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None],
    ragged: tuple[Tensor, Tensor, Tensor],
    strides: tuple[int, int],
    parts: Tensor,
    lse: Tensor,
    window: int,
    max_query_len: int,
    tiles: Tiles,
) -> None:
    """strides: of the scales; parts [T, H, SPLITS, D], lse [T, H, SPLITS]: one split alone writes no lse."""
    (q, keys, values, *_), (tables, _, seq_lens) = pool, ragged
    (_, num_heads, head_dim), (_, num_kv_heads, block_size, _) = q.shape, keys.shape
    group_size = num_heads // num_kv_heads
    num_tiles = triton.cdiv(max_query_len, tiles.rows // group_size)
    paged_attention_kernel[(num_tiles * tiles.splits, num_kv_heads, len(seq_lens))](
        *pool, *ragged, parts, lse,
        *strides, *q.stride()[:2], *keys.stride()[:3], *values.stride()[:3], tables.stride(0),
        *parts.stride()[:2], *lse.stride()[:2], head_dim**-0.5 / math.log(2), window,
        G=group_size, P=block_size, D=head_dim, BR=tiles.rows, BN=tiles.keys, BD=padded(q), SPLITS=tiles.splits,
        num_warps=tiles.warps, num_stages=tiles.stages, **OPTIONS,
    )  # fmt: skip


def padded(q: Tensor) -> int:
    """The power of two at or above a head's size, at least 16."""
    return max(16, int(triton.next_power_of_2(q.shape[-1])))


def choose_tiles(q: Tensor, keys: Tensor, num_seqs: int, max_query_len: int, longest: int) -> Tiles:
    """Matrix units want 16 rows; a prompt fills what registers hold."""
    group_size, exact, wide = q.shape[1] // keys.shape[1], q.dtype == torch.float32, q.shape[-1] > 128
    widened = keys.dtype != q.dtype and q.shape[-1] > 64  # in registers: 8 warps share what 4 would spill
    num_rows, most = max_query_len * group_size, 32 if exact or wide else 64 if widened else 128
    rows = max(16, triton.next_power_of_2(num_rows if num_rows <= 32 else max(most, group_size)))
    splits = choose_splits(num_seqs * keys.shape[1], longest, q.device) if num_rows <= rows else 1
    keys_at_once = 16 if exact else 32 if wide or rows > 32 or keys.dtype != q.dtype else 64
    return Tiles(rows, keys_at_once, splits, warps=8 if exact or widened or rows > 32 else 4, stages=2)


def choose_splits(num_walks: int, longest: int, device: torch.device) -> int:
    """A power of two, rounded down: at most two programs a multiprocessor, and no walk shorter than MIN_SPLIT_LEN."""
    if device.type != "cuda":
        return 1
    wanted = 2 * torch.cuda.get_device_properties(device).multi_processor_count // num_walks
    most = max(1, min(MAX_SPLITS, wanted, longest // MIN_SPLIT_LEN))
    return 1 << (most.bit_length() - 1)
