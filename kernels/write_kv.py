"""keys[block, head, offset] = k[token, head], and values likewise, where slot = block * P + offset; slot -1: nowhere.

    slot_mapping   [ 37  38  39  -1  112 ]      one slot per token of the batch, in any order

The keys and values of all tokens of a step are written before any are read, so a token sees itself and, in its layer,
everybody who came in the same step. k and v may be strided (slices of one fused product)."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .jit import compiled

Floats = NDArray[np.float32]


def write_kv_spec(k: Tensor, v: Tensor, keys: Tensor, values: Tensor, slot_mapping: Tensor) -> None:
    """k, v [T, K, D] into keys, values [B, K, P, D] at slot_mapping [T]."""
    written = slot_mapping >= 0
    slots, block_size = slot_mapping[written], keys.shape[2]
    block, offset = slots // block_size, slots % block_size
    keys[block, :, offset] = k[written]
    values[block, :, offset] = v[written]


def write_kv_cpu(k: Tensor, v: Tensor, keys: Tensor, values: Tensor, slot_mapping: Tensor) -> None:
    """The same, on float32 tensors of a CPU."""
    _, num_kv_heads, _, head_dim = keys.shape
    assert keys.shape == values.shape, f"keys {keys.shape}, values {values.shape}"
    assert k.shape == v.shape == (len(slot_mapping), num_kv_heads, head_dim), f"k {k.shape}, keys {keys.shape}"
    assert k.dtype == v.dtype == keys.dtype == values.dtype == torch.float32, f"{k.dtype}, {keys.dtype}"
    for new, cache in ((k, keys), (v, values)):
        write_rows(new.numpy(), cache.numpy(), slot_mapping.numpy())


@compiled()
def write_rows(new: Floats, cache: Floats, slot_mapping: NDArray[np.int64]) -> None:
    """new [T, K, D] into cache [B, K, P, D]"""
    num_kv_heads, block_size, D = cache.shape[1:]
    for t in range(len(slot_mapping)):
        if slot_mapping[t] >= 0:
            block, offset = slot_mapping[t] // block_size, slot_mapping[t] % block_size
            for head in range(num_kv_heads):
                for d in range(D):
                    cache[block, head, offset, d] = new[t, head, d]
