r"""out[t] = softmax(q[t] . keys / sqrt(D)) . values, over the keys that token t of its sequence may see.

The same as `paged_attention_spec` in paged_attention.py, on a GPU, without ever holding a row of scores. A program
answers for one sequence, one kv head and a few of the sequence's tokens in this step; it walks along their keys:

    rows       its tokens times the G query heads that share the kv head      [M, D]    token-major: row r is
    keys       N at a time, gathered from wherever their blocks are           [N, D]    token r // G, head r % G

                     table    | 7 | 2 | 5 | 9 |        P slots in each
                     keys      --------========--------========       N = 2 P: two blocks in one go
                                      lo ^            hi ^            nothing outside lo .. hi is ever read

    for each N keys          scores = rows . keys / sqrt(D), hidden ones -inf          [M, N]
    (online softmax)         top' = max(top, scores);  weights = 2 ^ (scores - top');  shrink = 2 ^ (top - top')
                             acc = acc * shrink + weights . values;  total = total * shrink + sum(weights)
    at the end               out = acc / total          (2 ^ x, with 1 / ln 2 in the scale, is what the hardware has)

A decode of a long sequence has a handful of rows and thousands of keys: too few programs to keep a GPU busy. Then the
walk is cut into splits, each a program with a result and a log2(sum 2 ^ scores) of its own, and a second kernel weighs
the results together (flash-decoding):

    lo [ split 0 | split 1 | split 2 | split 3 ] hi     out = sum over i of out_i 2 ^ lse_i / sum over i of 2 ^ lse_i

Prompts, decodes and whatever is between go through the same launch. Invariants: keys outside lo .. hi may be NaN, they
are not read; a row that sees nothing is zero; sums are float32; offsets into the pool are 64 bits wide."""

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .expect import OPTIONS, expect

MAX_SPLITS = 32
MIN_SPLIT_LEN = 512  # keys: fewer are not worth a program and its share of the combining


@triton.jit
def paged_attention_kernel(
    p_q, p_keys, p_values, p_tables, p_starts, p_lens, p_out, p_lse,
    q_t, q_h, keys_b, keys_h, keys_p, values_b, values_h, values_p, tables_s, out_t, out_h, lse_t, lse_h,
    scale, window, head_dim,
    G: tl.constexpr, P: tl.constexpr, M: tl.constexpr, N: tl.constexpr, E: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """x_t, x_h, ...: the strides of x; E the power of two above head_dim. p_out has one result for each split."""
    tile, split = tl.program_id(0) // SPLITS, tl.program_id(0) % SPLITS
    kv_head, seq = tl.program_id(1).to(tl.int64), tl.program_id(2)
    start = tl.load(p_starts + seq).to(tl.int64)
    num_queries = (tl.load(p_starts + seq + 1) - start).to(tl.int32)
    num_keys = tl.load(p_lens + seq)
    first = tile * (M // G)  # of the tile's tokens
    if first >= num_queries:
        return

    o_row, o_d = tl.arange(0, M), tl.arange(0, E)
    o_token, o_head = first + o_row // G, kv_head * G + o_row % G  # [M]
    position = num_keys - num_queries + o_token  # [M]
    m_d = o_d < head_dim
    m_row = (o_row < M // G * G) & (o_token < num_queries)
    p_row = p_q + (start + o_token) * q_t + o_head * q_h
    b_q = tl.load(p_row[:, None] + o_d[None, :], mask=m_row[:, None] & m_d[None, :], other=0.0)  # [M, E]

    lo = tl.maximum(num_keys - num_queries + first - window + 1, 0)
    hi = num_keys - num_queries + tl.minimum(first + M // G, num_queries)
    begin = lo // N * N
    split_len = tl.cdiv(tl.cdiv(tl.maximum(hi - begin, 0), N), SPLITS) * N
    begin += split * split_len
    hi = tl.minimum(hi, begin + split_len)

    top = tl.full([M], float("-inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    acc = tl.zeros([M, E], tl.float32)
    for n in range(begin, hi, N):
        o_key = n + tl.arange(0, N)  # [N]
        m_key = (o_key >= lo) & (o_key < hi)
        b_block = tl.load(p_tables + seq * tables_s + o_key // P, mask=m_key, other=0).to(tl.int64)  # [N]
        mask = m_key[:, None] & m_d[None, :]
        b_slot = (o_key % P).to(tl.int64)
        p_key = p_keys + b_block * keys_b + kv_head * keys_h + b_slot * keys_p  # [N]
        b_k = tl.load(p_key[:, None] + o_d[None, :], mask=mask, other=0.0)  # [N, E]
        scores = tl.dot(b_q, tl.trans(b_k), input_precision="ieee") * scale  # [M, N]
        distance = position[:, None] - o_key[None, :]
        scores = tl.where((distance >= 0) & (distance < window), scores, float("-inf"))

        new_top = tl.maximum(top, tl.max(scores, axis=1))
        base = tl.where(new_top == float("-inf"), 0.0, new_top)  # of a row that has seen nothing yet
        weights = tl.exp2(scores - base[:, None])
        shrink = tl.exp2(top - base)
        total = total * shrink + tl.sum(weights, axis=1)
        p_value = p_values + b_block * values_b + kv_head * values_h + b_slot * values_p  # [N]
        b_v = tl.load(p_value[:, None] + o_d[None, :], mask=mask, other=0.0)  # [N, E]
        acc = tl.dot(weights.to(b_v.dtype), b_v, acc * shrink[:, None], input_precision="ieee")
        top = new_top

    seen = tl.where(total > 0, total, 1.0)
    p_result = p_out + (start + o_token) * out_t + o_head * out_h + split * head_dim
    tl.store(p_result[:, None] + o_d[None, :], acc / seen[:, None], mask=m_row[:, None] & m_d[None, :])
    if SPLITS > 1:
        tl.store(p_lse + (start + o_token) * lse_t + o_head * lse_h + split, top + tl.log2(seen), mask=m_row)


@triton.jit
def combine_kernel(p_parts, p_lse, p_out, num_heads, head_dim, E: tl.constexpr, SPLITS: tl.constexpr):
    """parts [T, H, SPLITS, D] and lse [T, H, SPLITS] -> out [T, H, D], one program for each token and head."""
    row = tl.program_id(0).to(tl.int64) * num_heads + tl.program_id(1)
    o_split, o_d = tl.arange(0, SPLITS), tl.arange(0, E)
    m_d = o_d < head_dim
    b_lse = tl.load(p_lse + row * SPLITS + o_split)  # [SPLITS]
    top = tl.max(b_lse, axis=0)
    b_share = tl.exp2(b_lse - tl.where(top == float("-inf"), 0.0, top))  # [SPLITS]
    p_part = p_parts + (row * SPLITS + o_split) * head_dim
    b_part = tl.load(p_part[:, None] + o_d[None, :], mask=m_d[None, :], other=0.0)  # [SPLITS, E]
    total = tl.sum(b_share, axis=0)
    out = tl.sum(b_part * b_share[:, None], axis=0) / tl.where(total > 0, total, 1.0)
    tl.store(p_out + row * head_dim + o_d, out, mask=m_d)


class Tiles(NamedTuple):
    """How a launch is cut: M rows to a program, N keys at a time, splits to a walk; warps and stages are Triton's."""

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
) -> Tensor:
    """q [T, H, D], keys and values [B, K, P, D], tables [S, longest] -> [T, H, D]; tiles: how to cut, if not as usual.

    Every one of the T tokens belongs to one of the S sequences."""
    check(q, keys, values, tables, query_start_loc, seq_lens)
    (T, H, D), (_, K, P, _), S = q.shape, keys.shape, len(seq_lens)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if not out.numel():
        return out
    group_size, padded = H // K, max(16, triton.next_power_of_2(D))
    tiles = tiles or choose_tiles(q, S * K, group_size, max_query_len, min(max_seq_len, window + max_query_len))
    split = tiles.splits > 1
    parts = torch.empty(T, H, tiles.splits, D, dtype=torch.float32, device=q.device) if split else out
    lse = torch.empty(T, H, tiles.splits, dtype=torch.float32, device=q.device) if split else out
    num_tiles = triton.cdiv(max_query_len, tiles.rows // group_size)
    paged_attention_kernel[(num_tiles * tiles.splits, K, S)](
        q, keys, values, tables, query_start_loc, seq_lens, parts, lse,
        *q.stride()[:2], *keys.stride()[:3], *values.stride()[:3], tables.stride(0),
        *parts.stride()[:2], *lse.stride()[:2], D**-0.5 / math.log(2), window, D,
        G=group_size, P=P, M=tiles.rows, N=tiles.keys, E=padded, SPLITS=tiles.splits,
        num_warps=tiles.warps, num_stages=tiles.stages, **OPTIONS,
    )  # fmt: skip
    if split:
        combine_kernel[(T, H)](parts, lse, out, H, D, E=padded, SPLITS=tiles.splits, **OPTIONS)
    return out


def check(q: Tensor, keys: Tensor, values: Tensor, tables: Tensor, query_start_loc: Tensor, seq_lens: Tensor) -> None:
    """Raises ValueError with the name of whatever does not fit the others."""
    expect("q", q, (None, None, None), like=q)
    (_, H, D), S = q.shape, len(seq_lens)
    expect("keys", keys, (None, None, None, D), like=q)
    expect("values", values, tuple(keys.shape), like=q)
    for name, tensor, shape in (
        ("tables", tables, (S, None)),
        ("query_start_loc", query_start_loc, (S + 1,)),
        ("seq_lens", seq_lens, (S,)),
    ):
        expect(name, tensor, shape, like=q, dtype=torch.int32)
    if D > 256 or H % keys.shape[1]:
        raise ValueError(f"{H} query heads of {D} over {keys.shape[1]} kv heads: D is at most 256, H a multiple of K")


def choose_tiles(q: Tensor, num_walks: int, group_size: int, max_query_len: int, longest: int) -> Tiles:
    """Matrix units want 16 rows or more: a decode has its group, a prompt fills 128. Registers set the limit."""
    wide = q.dtype == torch.float32 or q.shape[-1] > 128
    num_rows, whole_group = max_query_len * group_size, triton.next_power_of_2(group_size)
    rows = max(16, triton.next_power_of_2(num_rows)) if num_rows <= 32 else max(whole_group, 32 if wide else 128)
    splits = choose_splits(num_walks, longest, q.device) if num_rows <= rows else 1
    return Tiles(rows, keys=32 if wide else 64, splits=splits, warps=4 if rows <= 32 else 8, stages=2)


def choose_splits(num_walks: int, longest: int, device: torch.device) -> int:
    """A power of two: enough for two programs on every multiprocessor, unless the walks are too short for it."""
    if device.type != "cuda":
        return 1
    wanted = 2 * torch.cuda.get_device_properties(device).multi_processor_count // num_walks
    most = max(1, min(MAX_SPLITS, wanted, longest // MIN_SPLIT_LEN))
    return 1 << (most.bit_length() - 1)
