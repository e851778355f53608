"""The KV cache is one flat memory of slots, cut into blocks; who owns which block is nobody's business here.

    keys of one layer     [B, K, P, D]      block, head, offset in the block, dimension
    slot 37, P = 16  ->   block 2, offset 5

Within a block a head's keys lie side by side, so a kernel reads P * D numbers in a row. Level 01 has the same memory
with P = max_model_len: a row is a very long block. Invariant: what was never written is never read, so nobody clears
it (tests fill it with NaN). (From level 01; blocks mean something from level 02 on.)"""

from typing import NamedTuple

import torch
from torch import Tensor

from .parallel.portion import Portion


class LayerCache(NamedTuple):
    keys: Tensor  # [B, K, P, D]
    values: Tensor  # [B, K, P, D]


class KVCache:
    """Keys and values of a rank's layers; `layers[i]` is the view that the i-th of them has."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        portion: Portion,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ):
        self.num_blocks, self.block_size = num_blocks, block_size
        shape = (len(portion.layers), 2, num_blocks, len(portion.kv_heads), block_size, head_dim)
        self.data = torch.empty(shape, dtype=dtype, device=device)  # [L, 2, B, K, P, D]
        self.layers = [LayerCache(keys, values) for keys, values in self.data]
