"""out[t] = softmax(q[t] . keys / sqrt(D)) . values, over the keys that token t of its sequence may see.

    sequence s          its tokens of this step   query_start_loc[s] .. query_start_loc[s + 1]
                        its keys                  0 .. seq_lens[s], in blocks block_tables[s]
    its last token has position seq_lens[s] - 1, the one before it seq_lens[s] - 2, ...
    position p sees     max(0, p - W + 1) .. p    W the sliding window; without one, everything up to itself

One formula for prompts, decodes and everything between. A group of H / K query heads shares each kv head. A sequence
without keys gives zeros. Slots beyond seq_lens are never read: they may hold NaN."""

from itertools import pairwise

import torch
from torch import Tensor


def paged_attention_spec(
    q: Tensor, keys: Tensor, values: Tensor, tables: Tensor, query_start_loc: Tensor, seq_lens: Tensor, window: int
) -> Tensor:
    """q [T, H, D], keys and values [B, K, P, D], tables [S, longest] -> [T, H, D]. window 0: none."""
    out = torch.zeros_like(q)
    for s, (start, end) in enumerate(pairwise(query_start_loc.tolist())):
        n, blocks = int(seq_lens[s]), tables[s, : -(-int(seq_lens[s]) // keys.shape[2])]
        k = keys[blocks].transpose(1, 2).flatten(0, 1)[:n].float()  # [n, K, D]
        v = values[blocks].transpose(1, 2).flatten(0, 1)[:n].float()  # [n, K, D]
        queries = q[start:end].unflatten(1, (k.shape[1], -1)).float()  # [m, K, H / K, D]
        scores = torch.einsum("mkgd,nkd->kgmn", queries, k) * q.shape[-1] ** -0.5
        distance = torch.arange(n - (end - start), n, device=q.device)[:, None] - torch.arange(n, device=q.device)
        hidden = (distance < 0) | (distance >= (window or n))  # [m, n]
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        out[start:end] = torch.einsum("kgmn,nkd->mkgd", weights, v).flatten(1, 2).to(q.dtype)
    return out
