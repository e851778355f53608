"""out[t] = softmax(q[t] . keys / sqrt(D)) . values, over the keys that token t of its sequence may see.

    sequence s          its tokens of this step   query_start_loc[s] .. query_start_loc[s + 1]
                        its keys                  0 .. seq_lens[s], in blocks tables[s]
    its last token has position seq_lens[s] - 1, the one before it seq_lens[s] - 2, ...
    position p sees     max(0, p - window + 1) .. p

One formula for prompts, decodes and everything between. A group of G = H / K query heads shares each kv head. A
sequence without keys gives zeros. Slots beyond seq_lens are never read: they may hold NaN.

The CPU kernel goes through the keys in tiles and never holds a whole row of scores (online softmax, Milakov and
Gimelshein 2018; FlashAttention, Dao et al. 2022). One piece of work is (sequence, kv head, some of its tokens):

    rows   G x up to 96 / G queries, scaled         [R, D]
    tile   64 keys, then their values, a run of neighbours in a block at a time, read where they lie
    for each tile     scores = rows . keys                         [R, N]
                      top' = max(top, scores);  weights = exp(scores - top');  shrink = exp(top - top')
                      acc = acc * shrink + weights . values;  total = total * shrink + sum(weights)
    out = acc / total"""

import math
from itertools import pairwise

import numpy as np
import torch
from numba import prange
from numpy.typing import NDArray
from torch import Tensor

from .jit import Floats, Thread, compiled
from .narrow import Numbers, Scales, widen_spec
from .online_softmax import weigh
from .runs import add_run, scale_run, score_run

Ints = NDArray[np.int32]
Share = tuple[Thread, int]  # thread, of how many
Span = tuple[int, int, int]  # first token, end, position of the first
Pool = tuple[Floats | Numbers, Floats | None]  # of keys or values [B, K, P, D]; if they are narrow, scales [B, K, P]

ALL_KEYS = 1 << 30  # the window of a layer without one
NUM_ROWS = 96  # rows and a tile of keys together stay in a core's nearest cache
NUM_KEYS = 64
ZERO, MINUS_INF = np.float32(0), np.float32(-math.inf)


def paged_attention_spec(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    tables: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    window: int,
    scales: Scales | None = None,
) -> Tensor:
    """q [T, H, D], keys and values [B, K, P, D], tables [S, longest], scales [B, K, P] each -> [T, H, D]"""
    (_, H, D), (_, K, P, _), out = q.shape, keys.shape, torch.zeros_like(q)
    for s, (start, end) in enumerate(pairwise(query_start_loc.tolist())):
        n, blocks = int(seq_lens[s]), tables[s, : -(-int(seq_lens[s]) // P)]
        pools = zip((keys, values), scales or (None, None), strict=True)
        wide = (widen_spec(pool[blocks], of_pool if of_pool is None else of_pool[blocks]) for pool, of_pool in pools)
        k, v = (rows.transpose(1, 2).flatten(0, 1)[:n] for rows in wide)  # [n, K, D] each
        queries = q[start:end].float().reshape(end - start, K, H // K, D)  # [m, K, G, D]
        scores = torch.einsum("mkgd,nkd->kgmn", queries, k) * D**-0.5
        distance = torch.arange(n - (end - start), n, device=q.device)[:, None] - torch.arange(n, device=q.device)
        weights = scores.masked_fill((distance < 0) | (distance >= window), -math.inf).softmax(-1)
        out[start:end] = torch.einsum("kgmn,nkd->mkgd", weights, v).flatten(1, 2).to(q.dtype)
    return out


def paged_attention_cpu(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    tables: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    window: int,
    scales: Scales | None = None,
) -> Tensor:
    """The same, on float32 tensors of a CPU, as fast as its cores allow; with scales, keys and values are int8."""
    num_heads, (num_kv_heads, _, head_dim) = q.shape[1], keys.shape[1:]
    assert keys.shape == values.shape, f"keys {keys.shape}, values {values.shape}"
    assert (q.shape[2], num_heads % num_kv_heads) == (head_dim, 0), f"q {q.shape}, keys {keys.shape}"
    lengths = (len(query_start_loc) - 1, len(seq_lens), len(tables))
    assert len(set(lengths)) == 1, f"{lengths} query chunks, lengths and block tables"
    kept = torch.float32 if scales is None else torch.int8
    for tensor, dtype in ((q, torch.float32), (keys, kept), (values, kept)):
        assert tensor.dtype == dtype, f"{tensor.dtype} is not {str(dtype).removeprefix('torch.')}"
        assert tensor.is_contiguous(), f"strides {tensor.stride()} of {tensor.shape}"
    out = torch.zeros_like(q)
    of_keys, of_values = (None, None) if scales is None else (of_pool.numpy() for of_pool in scales)
    pools, places = ((keys.numpy(), of_keys), (values.numpy(), of_values)), (tables.numpy(), query_start_loc.numpy())
    attend_all(q.numpy(), *pools, *places, seq_lens.numpy(), window, out.numpy(), torch.get_num_threads())
    return out


@compiled(parallel=True)
def attend_all(
    q: Floats,
    keys: Pool,
    values: Pool,
    tables: Ints,
    starts: Ints,
    lens: Ints,
    window: int,
    out: Floats,
    threads: int,
) -> None:
    """Each thread takes its share of the pieces of work; no two write the same rows of out."""
    # OpenMP, not a pool of Python threads: those were no faster than one thread alone
    for thread in prange(threads):
        attend_share(q, keys, values, tables, starts, lens, window, out, (np.int64(thread), threads))


@compiled()
def attend_share(
    q: Floats,
    keys: Pool,
    values: Pool,
    tables: Ints,
    starts: Ints,
    lens: Ints,
    window: int,
    out: Floats,
    share: Share,
) -> None:
    """All pieces in order; a thread takes those whose middle, counted in cost, lies in its part of the whole."""
    (thread, threads), num_kv_heads = share, keys[0].shape[1]
    tile_len = max(1, NUM_ROWS * num_kv_heads // q.shape[1])
    whole, done = num_kv_heads * cost_of_all(starts, lens, tile_len, window), 0
    for s in range(len(lens)):
        for head in range(num_kv_heads):
            for start in range(starts[s], starts[s + 1], tile_len):
                end, position = min(start + tile_len, starts[s + 1]), lens[s] - starts[s + 1] + start
                cost = cost_of(end - start, position, window)
                if cost and (done + cost // 2) * threads // whole == thread:
                    attend_piece(q, keys, values, tables[s], (start, end, position), head, window, out)
                done += cost


@compiled()
def cost_of_all(starts: Ints, lens: Ints, tile_len: int, window: int) -> int:
    """Of one kv head."""
    whole = 0
    for s in range(len(lens)):
        for start in range(starts[s], starts[s + 1], tile_len):
            position = lens[s] - starts[s + 1] + start
            whole += cost_of(min(tile_len, starts[s + 1] - start), position, window)
    return whole


@compiled()
def cost_of(num_queries: int, position: int, window: int) -> int:
    """Scores to compute, and a tile's worth for being there at all; without keys there is nothing to do."""
    return num_queries * (max(0, min(position, window)) + num_queries + NUM_KEYS) if position + num_queries > 0 else 0


@compiled()
def attend_piece(
    q: Floats, keys: Pool, values: Pool, table: Ints, span: Span, head: int, window: int, out: Floats
) -> None:
    """The group of query heads of one kv head, for tokens start .. end, the first of which has this position."""
    (start, end, position), group_size, D = span, q.shape[1] // keys[0].shape[1], q.shape[2]
    num_rows, last = (end - start) * group_size, position + end - start
    rows, acc = np.empty((num_rows, D), np.float32), np.zeros((num_rows, D), np.float32)
    top, total = np.full(num_rows, MINUS_INF, np.float32), np.zeros(num_rows, np.float32)
    scores = np.empty((num_rows, NUM_KEYS), np.float32)
    load_rows(q, start, head, group_size, rows)
    for j in range(max(0, position - window + 1), last, NUM_KEYS):
        n = min(NUM_KEYS, last - j)
        score(rows, keys[0], keys[1], table, head, j, n, scores)
        for r in range(num_rows):
            p = position + r // group_size - j
            top[r], total[r] = weigh(scores[r], max(0, p - window + 1), min(n, p + 1), top[r], total[r], acc[r])
        add_values(scores, values[0], values[1], table, head, j, n, acc)
    store_rows(acc, total, start, head, group_size, out)


@compiled()
def load_rows(q: Floats, start: int, head: int, group_size: int, rows: Floats) -> None:
    """q [T, H, D] from token start on into rows [R, D], scaled."""
    scale = np.float32(q.shape[2] ** -0.5)
    for r in range(len(rows)):
        for d in range(rows.shape[1]):
            rows[r, d] = q[start + r // group_size, head * group_size + r % group_size, d] * scale


@compiled()
def find_run(table: Ints, first: int, last: int, block_size: int) -> tuple[int, int, int]:
    """Of positions first .. last, those in first's block: the block, and offsets start .. end in it."""
    offset = first % block_size
    return table[first // block_size], offset, min(block_size, offset + last - first)


@compiled()
def score(
    rows: Floats,
    keys: Floats | Numbers,
    scales: Floats | None,
    table: Ints,
    head: int,
    first: int,
    n: int,
    scores: Floats,
) -> None:
    """scores [R, N] = rows [R, D] . the n keys from position first on, in keys [B, K, P, D]."""
    done = 0
    while done < n:
        block, offset, end = find_run(table, first + done, first + n, keys.shape[2])
        score_run(rows, keys[block, head, offset:end], scores, done)
        if scales is not None:  # decided by numba, when it compiles for None
            scale_run(scores, scales[block, head, offset:end], done)
        done += end - offset


@compiled()
def add_values(
    weights: Floats,
    values: Floats | Numbers,
    scales: Floats | None,
    table: Ints,
    head: int,
    first: int,
    n: int,
    acc: Floats,
) -> None:
    """acc [R, D] += weights [R, N] . the n values from position first on, in values [B, K, P, D]."""
    done = 0
    while done < n:
        block, offset, end = find_run(table, first + done, first + n, values.shape[2])
        if scales is not None:
            scale_run(weights, scales[block, head, offset:end], done)
        add_run(weights, values[block, head, offset:end], acc, done)
        done += end - offset


@compiled()
def store_rows(acc: Floats, total: Floats, start: int, head: int, group_size: int, out: Floats) -> None:
    """acc [R, D] over total [R] into out [T, H, D]; a row without keys is zero already."""
    for r in range(len(acc)):
        if total[r] != ZERO:
            for d in range(acc.shape[1]):
                out[start + r // group_size, head * group_size + r % group_size, d] = acc[r, d] / total[r]
