"""out[t] = softmax(q[t] . keys / sqrt(D)) . values, over the keys that token t of its sequence may see.

    sequence s          its tokens of this step   query_start_loc[s] .. query_start_loc[s + 1]
                        its keys                  0 .. seq_lens[s], in blocks block_tables[s]
    its last token has position seq_lens[s] - 1, the one before it seq_lens[s] - 2, ...
    position p sees     max(0, p - window + 1) .. p

One formula for prompts, decodes and everything between. A group of G = H / K query heads shares each kv head. A
sequence without keys gives zeros. Slots beyond seq_lens are never read: they may hold NaN.

The CPU kernel goes through the keys in tiles and never holds a whole row of scores (online softmax, Milakov and
Gimelshein 2018; FlashAttention, Dao et al. 2022). One piece of work is (sequence, kv head, tile of queries):

    rows   G x up to 96 / G queries, scaled         [R, D]
    tile   64 keys, then their values, gathered     [N, D]    from wherever their blocks are
    for each tile     scores = rows . keys
                      m' = max(m, scores);  weights = exp(scores - m');  shrink = exp(m - m')
                      acc = acc * shrink + weights . values;  total = total * shrink + sum(weights)
    out = acc / total"""

import math
from itertools import pairwise

import numpy as np
import torch
from numba import prange
from numpy.typing import NDArray
from torch import Tensor

from .jit import compiled

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]

ALL_KEYS = 1 << 30  # the window of a layer without one
NUM_ROWS = 96  # rows and a tile of keys together stay in a core's nearest cache
NUM_KEYS = 64
ZERO, MINUS_INF = np.float32(0), np.float32(-math.inf)
LOG2_E = np.float32(1 / math.log(2))
C1, C2, C3, C4, C5, C6 = [np.float32(math.log(2) ** i / math.factorial(i)) for i in range(1, 7)]  # of 2 ** x


def paged_attention_spec(
    q: Tensor, keys: Tensor, values: Tensor, tables: Tensor, query_start_loc: Tensor, seq_lens: Tensor, window: int
) -> Tensor:
    """q [T, H, D], keys and values [B, K, P, D], tables [S, longest] -> [T, H, D]"""
    out = torch.zeros_like(q)
    for s, (start, end) in enumerate(pairwise(query_start_loc.tolist())):
        n, blocks = int(seq_lens[s]), tables[s, : -(-int(seq_lens[s]) // keys.shape[2])]
        k = keys[blocks].transpose(1, 2).flatten(0, 1)[:n].float()  # [n, K, D]
        v = values[blocks].transpose(1, 2).flatten(0, 1)[:n].float()  # [n, K, D]
        queries = q[start:end].unflatten(1, (k.shape[1], -1)).float()  # [m, K, G, D]
        scores = torch.einsum("mkgd,nkd->kgmn", queries, k) * q.shape[-1] ** -0.5
        distance = torch.arange(n - (end - start), n, device=q.device)[:, None] - torch.arange(n, device=q.device)
        weights = scores.masked_fill((distance < 0) | (distance >= window), -math.inf).softmax(-1)
        out[start:end] = torch.einsum("kgmn,nkd->mkgd", weights, v).flatten(1, 2).to(q.dtype)
    return out


def paged_attention_cpu(
    q: Tensor, keys: Tensor, values: Tensor, tables: Tensor, query_start_loc: Tensor, seq_lens: Tensor, window: int
) -> Tensor:
    """The same, on float32 tensors of a CPU, as fast as its cores allow."""
    (T, H, D), (B, K, P, _), S = q.shape, keys.shape, len(seq_lens)
    assert keys.shape == values.shape == (B, K, P, D) and H % K == 0, f"q {q.shape}, keys {keys.shape}"
    assert query_start_loc.shape == (S + 1,) and tables.shape[0] == S, f"{S} lengths, tables {tables.shape}"
    for tensor, dtype in ((q, torch.float32), (keys, torch.float32), (values, torch.float32), (tables, torch.int32)):
        assert tensor.dtype == dtype and tensor.is_contiguous(), f"{tensor.dtype}, strides {tensor.stride()}"
    out = torch.zeros_like(q)
    arrays = [tensor.numpy() for tensor in (q, keys, values, tables, query_start_loc, seq_lens, out)]
    attend_all(*arrays, window, torch.get_num_threads())
    return out


@compiled(parallel=True)
def attend_all(
    q: Floats,
    keys: Floats,
    values: Floats,
    tables: Ints,
    query_start_loc: Ints,
    seq_lens: Ints,
    out: Floats,
    window: int,
    num_workers: int,
) -> None:
    """Every worker takes its share of the pieces of work; no two write the same rows of out."""
    group_size = q.shape[1] // keys.shape[1]
    tile_len = max(1, NUM_ROWS // group_size)
    work, owner = list_work(query_start_loc, seq_lens, keys.shape[1], tile_len, window, num_workers)
    for worker in prange(num_workers):
        for i in range(len(work)):
            if owner[i] == worker:
                s, head, start = work[i]
                end = min(start + tile_len, query_start_loc[s + 1])
                position = seq_lens[s] - query_start_loc[s + 1] + start
                heads = slice(head * group_size, (head + 1) * group_size)
                attend_piece(
                    q[start:end, heads], keys[:, head], values[:, head], tables[s], position, window, out[start:end, heads]
                )


@compiled()
def list_work(
    query_start_loc: Ints, seq_lens: Ints, num_kv_heads: int, tile_len: int, window: int, num_workers: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Pieces (sequence, kv head, first token), and who does which: neighbours together, the same number of keys each."""
    num_tiles = (np.diff(query_start_loc) + tile_len - 1) // tile_len
    work = np.empty((np.sum(num_tiles) * num_kv_heads, 3), np.int64)
    cost = np.empty(len(work), np.int64)
    i = 0
    for s in range(len(seq_lens)):
        for head in range(num_kv_heads):
            for start in range(query_start_loc[s], query_start_loc[s + 1], tile_len):
                num_queries = min(tile_len, query_start_loc[s + 1] - start)
                position = seq_lens[s] - query_start_loc[s + 1] + start
                work[i, 0], work[i, 1], work[i, 2] = s, head, start
                cost[i] = num_queries * (min(position, window) + num_queries + NUM_KEYS)
                i += 1
    ends = np.cumsum(cost)
    return work, (ends - cost // 2) * num_workers // max(1, np.sum(cost))


@compiled()
def attend_piece(
    q: Floats, keys: Floats, values: Floats, table: Ints, position: int, window: int, out: Floats
) -> None:
    """q, out [queries, G, D] of one kv head and keys, values [B, P, D] of it; position is that of the first query."""
    num_queries, group_size, D = q.shape
    rows = np.empty((num_queries * group_size, D), np.float32)
    load_rows(q, rows)
    acc = np.zeros_like(rows)
    top, total = np.full(len(rows), MINUS_INF, np.float32), np.zeros(len(rows), np.float32)
    scores, tile = np.empty((len(rows), NUM_KEYS), np.float32), np.empty((NUM_KEYS, D), np.float32)
    first, last = max(0, position - window + 1), position + num_queries
    for j in range(first, last, NUM_KEYS):
        n = min(NUM_KEYS, last - j)
        gather(keys, table, j, n, tile)
        score(rows, tile, n, scores)
        for r in range(len(rows)):
            p = position + r // group_size - j
            top[r], total[r] = weigh(scores[r], max(0, p - window + 1), min(n, p + 1), top[r], total[r], acc[r])
        gather(values, table, j, n, tile)
        add_values(scores, tile, n, acc)
    store_rows(acc, total, out)


@compiled()
def load_rows(q: Floats, rows: Floats) -> None:
    """q [queries, G, D] into rows [R, D], scaled."""
    scale = np.float32(q.shape[2] ** -0.5)
    for r in range(len(rows)):
        for d in range(rows.shape[1]):
            rows[r, d] = q[r // q.shape[1], r % q.shape[1], d] * scale


@compiled()
def gather(cache: Floats, table: Ints, first: int, n: int, tile: Floats) -> None:
    """Positions first .. first + n of cache [B, P, D] into tile [N, D]; zeros up to a multiple of four."""
    block_size = cache.shape[1]
    for j in range(n):
        row = cache[table[(first + j) // block_size], (first + j) % block_size]
        for d in range(tile.shape[1]):
            tile[j, d] = row[d]
    tile[n : (n + 3) // 4 * 4] = ZERO


@compiled()
def score(rows: Floats, tile: Floats, n: int, scores: Floats) -> None:
    """scores [R, N] = rows [R, D] . tile [N, D], four keys at a time so that a row is read once for all of them."""
    for j in range(0, n, 4):
        for r in range(len(rows)):
            s0 = s1 = s2 = s3 = ZERO
            for d in range(rows.shape[1]):
                x = rows[r, d]
                s0 += x * tile[j, d]
                s1 += x * tile[j + 1, d]
                s2 += x * tile[j + 2, d]
                s3 += x * tile[j + 3, d]
            scores[r, j], scores[r, j + 1], scores[r, j + 2], scores[r, j + 3] = s0, s1, s2, s3


@compiled()
def add_values(weights: Floats, tile: Floats, n: int, acc: Floats) -> None:
    """acc [R, D] += weights [R, N] . tile [N, D], four keys at a time."""
    for j in range(0, n, 4):
        for r in range(len(acc)):
            w0, w1, w2, w3 = weights[r, j], weights[r, j + 1], weights[r, j + 2], weights[r, j + 3]
            for d in range(acc.shape[1]):
                acc[r, d] += w0 * tile[j, d] + w1 * tile[j + 1, d] + w2 * tile[j + 2, d] + w3 * tile[j + 3, d]


@compiled()
def weigh(
    scores: Floats, start: int, end: int, top: np.float32, total: np.float32, acc: Floats
) -> tuple[np.float32, np.float32]:
    """Turn a row's scores [N] into weights, zero but for keys start .. end; the new maximum and sum of weights."""
    if end <= start:
        scores[:] = ZERO
        return top, total
    new_top = top
    for j in range(start, end):
        new_top = max(new_top, scores[j])
    shrink = np.exp(top - new_top)
    for d in range(len(acc)):
        acc[d] *= shrink
    scores[:start] = ZERO
    exp_minus(scores[start:end], new_top)
    scores[end:] = ZERO
    return new_top, total * shrink + np.sum(scores[start:end])


@compiled()
def exp_minus(x: Floats, top: np.float32) -> None:
    """x = exp(x - top), for x <= top: 2 ** i by way of the exponent's bits, 2 ** f by its series, i + f the power."""
    powers = np.empty(len(x), np.int32)
    for j in range(len(x)):
        power = (x[j] - top) * LOG2_E
        power = np.float32(-126) if power < np.float32(-126) else power  # a NaN stays one
        i = np.floor(power + np.float32(0.5))
        f = power - i
        powers[j] = (np.int32(i) + np.int32(127)) << np.int32(23)
        x[j] = ((((((C6 * f + C5) * f + C4) * f + C3) * f + C2) * f + C1) * f) + np.float32(1)
    x *= powers.view(np.float32)


@compiled()
def store_rows(acc: Floats, total: Floats, out: Floats) -> None:
    """acc [R, D] over total [R] into out [queries, G, D]; a row without keys is zero already."""
    for r in range(len(acc)):
        if total[r] != ZERO:
            for d in range(acc.shape[1]):
                out[r // out.shape[1], r % out.shape[1], d] = acc[r, d] / total[r]
