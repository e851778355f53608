"""The KV cache is one flat memory of slots, cut into blocks; who owns which block is nobody's business here.

    keys of one layer     [B, K, P, D]      block, head, offset in the block, dimension
    slot 37, P = 16  ->   block 2, offset 5

Within a block a head's keys lie side by side, so a kernel reads P * D numbers in a row. Level 01 has the same memory
with P = max_model_len: a row is a very long block. Kept narrow (`kv_cache_dtype`), a slot has a scale for each head
beside it, [B, K, P] (kernels/narrow.py): as many bytes hold up to four times the tokens. Invariant: what was never
written is never read, so nobody clears it (tests fill it with NaN). (From level 01; blocks mean something from level 02
on.)"""

from typing import NamedTuple

import torch
from torch import Tensor

from .kernels.narrow import Scales
from .parallel.portion import Portion

NARROW = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}  # what kv_cache_dtype may say beside auto


class LayerCache(NamedTuple):
    keys: Tensor  # [B, K, P, D]
    values: Tensor  # [B, K, P, D]
    scales: Scales | None = None  # [B, K, P] each, if keys and values are narrow


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
        rows = shape[:-1] if dtype in NARROW.values() else (0,)
        self.scales = torch.empty(rows, dtype=torch.float32, device=device)  # [L, 2, B, K, P] beside narrow numbers
        self.layers = [LayerCache(keys, values) for keys, values in self.data]
        for i, (of_keys, of_values) in enumerate(self.scales):
            self.layers[i] = self.layers[i]._replace(scales=(of_keys, of_values))

    @property
    def num_bytes(self) -> int:
        return self.data.nbytes + self.scales.nbytes
