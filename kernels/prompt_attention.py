"""out[t] = softmax(q[t] . keys / sqrt(D)) . values: the same as paged_attention.py, for chunks of many tokens on a CPU.

    few tokens     q  . . .            every key is used a few times: read where it lies, in place
    many tokens    q  ################ every key is used many times: gather them once, side by side,
                      ################ and it is a product of matrices, which torch does at full rate

A prompt's chunk has hundreds of tokens, a decode one, and a batch both: each sequence goes the way that is faster for
it. Gathered ones go 64 queries at a time, so that keys ahead of all are left out; torch by itself leaves out 512 or
none. One layer of 9 heads over 3 kv heads of 64, milliseconds on two cores of an EPYC with AVX-512:

    tokens      128     256     512    1,024    256 of 1,024
    in place    0.33    1.04    4.29    14.2    6.68
    gathered    0.46    1.12    3.83    11.3    5.37"""

from functools import lru_cache
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from .narrow import Scales, widen_spec
from .paged_attention import paged_attention_cpu

MANY = 256  # tokens in a chunk
SLICE = 64  # queries at a time


def attention_cpu(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    tables: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    window: int,
    scales: Scales | None = None,
    many: int = MANY,
) -> Tensor:
    """q [T, H, D], keys and values [B, K, P, D], tables [S, longest] -> [T, H, D]; float32, narrow ones int8."""
    spans, lens = list(pairwise(query_start_loc.tolist())), seq_lens.tolist()
    long = [s for s, (start, end) in enumerate(spans) if many <= end - start <= lens[s]]
    rest = seq_lens.index_fill(0, torch.tensor(long, dtype=torch.int64), 0)  # without keys there is nothing to do
    out = paged_attention_cpu(q, keys, values, tables, query_start_loc, rest, window, scales)
    for s, (start, end) in ((s, spans[s]) for s in long):
        blocks = tables[s, : -(-lens[s] // keys.shape[2])]
        k, v = (gather(*pool, blocks, lens[s]) for pool in zip((keys, values), scales or (None, None), strict=True))
        if bool(k.sum().isfinite()):
            out[start:end] = attend_gathered(q[start:end].transpose(0, 1), k, v, window).transpose(0, 1)
        else:  # torch hides a key by adding -inf to its score, which leaves a NaN a NaN
            one = tables[s : s + 1], torch.tensor([0, end - start], dtype=torch.int32), seq_lens[s : s + 1]
            out[start:end] = paged_attention_cpu(q[start:end], keys, values, *one, window, scales)
    return out


def gather(pool: Tensor, scales: Tensor | None, blocks: Tensor, num_keys: int) -> Tensor:
    """pool [B, K, P, D], scales [B, K, P] -> float32 [K, n, D]"""
    rows = pool.transpose(0, 1)[:, blocks].flatten(1, 2)[:, :num_keys]  # index_select would copy all of the pool first
    return rows if scales is None else widen_spec(rows, gather(scales, None, blocks, num_keys))


def attend_gathered(q: Tensor, k: Tensor, v: Tensor, window: int) -> Tensor:
    """q [H, m, D] are the last m of n positions, k and v [K, n, D] -> [H, m, D]"""
    out, before = torch.empty_like(q), k.shape[1] - q.shape[1]
    for start in range(0, q.shape[1], SLICE):
        rows = q[:, start : start + SLICE]
        first, last = max(0, before + start - window + 1), before + start + rows.shape[1]
        mask = hide(SLICE, power_above(last - first), window)[-rows.shape[1] :, first - last :]
        seen = rows[None], k[None, :, first:last], v[None, :, first:last]
        out[:, start : start + SLICE] = scaled_dot_product_attention(*seen, mask, enable_gqa=True)[0]
    return out


@lru_cache(maxsize=16)
def hide(num_queries: int, num_keys: int, window: int) -> Tensor:
    """What is added to scores [m, n] of the last m of n positions: 0 for the window's keys up to the query's own, -inf
    for all others. The right end of its last rows is that of fewer queries and fewer keys."""
    distance = torch.arange(num_keys - num_queries, num_keys)[:, None] - torch.arange(num_keys)
    return torch.zeros(distance.shape).masked_fill_((distance < 0) | (distance >= window), -torch.inf)


def power_above(n: int) -> int:
    """The power of two that is n or the next above it, so that a few masks serve all lengths."""
    return 1 << (n - 1).bit_length()
