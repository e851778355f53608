"""keys[block, head, offset] = k[token, head], and values likewise, where slot = block * P + offset; slot -1: nowhere.

    slot_mapping   [ 37  38  39  -1  112 ]      one slot per token of the batch, in any order

The keys and values of all tokens of a step are written before any are read, so a token sees itself and, in its layer,
everybody who came in the same step. k and v may be strided (slices of one fused product).

A value that is no number is muted: stored as zero, under a key of NaN. For 0 x NaN is NaN: a hidden value would spoil
the sums of tokens that do not see it, a wrong guess those of the words before it. A hidden key spoils nothing, as its
score is thrown away, and whoever sees it still gets NaN. Invariant: values are finite."""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .jit import Floats, compiled, flat

ZERO = np.float32(0)


def write_kv_spec(k: Tensor, v: Tensor, keys: Tensor, values: Tensor, slot_mapping: Tensor) -> None:
    """k, v [T, K, D] into keys, values [B, K, P, D] at slot_mapping [T]."""
    written = slot_mapping >= 0
    slots, block_size = slot_mapping[written], keys.shape[2]
    is_mute = ~v.isfinite().all(-1, keepdim=True)  # [T, K, 1]
    k, v = k.masked_fill(is_mute, math.nan), v.masked_fill(is_mute, 0)
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
        if new.numel():
            write_rows(flat(new), (new.stride(0), new.stride(1)), cache.numpy(), slot_mapping.numpy())
    mute(keys.numpy(), values.numpy(), slot_mapping.numpy())


@compiled()
def write_rows(new: Floats, strides: tuple[int, int], cache: Floats, slot_mapping: NDArray[np.int64]) -> None:
    """new [T, K, D] into cache [B, K, P, D]; strides are those of new from token to token and head to head."""
    (new_t, new_h), (_, num_kv_heads, block_size, D) = strides, cache.shape
    for t in range(len(slot_mapping)):
        if slot_mapping[t] >= 0:
            block, offset = slot_mapping[t] // block_size, slot_mapping[t] % block_size
            for head in range(num_kv_heads):
                row, slot = new[t * new_t + head * new_h :], cache[block, head, offset]
                for d in range(D):
                    slot[d] = row[d]


@compiled()
def mute(keys: Floats, values: Floats, slot_mapping: NDArray[np.int64]) -> None:
    """keys, values [B, K, P, D], of which these slots were written just now."""
    block_size, D = values.shape[2:]
    for slot in slot_mapping:
        for head in range(values.shape[1] if slot >= 0 else 0):
            value, nothing = values[slot // block_size, head, slot % block_size], ZERO
            for d in range(D):
                nothing += value[d] * ZERO
            if nothing != ZERO:
                value[:] = ZERO
                keys[slot // block_size, head, slot % block_size] = nothing
