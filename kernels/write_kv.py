"""keys[block, head, offset] = k[token, head], and values likewise, where slot = block * P + offset; slot -1: nowhere.

    slot_mapping   [ 37  38  39  -1  112 ]      one slot per token of the batch, in any order

The keys and values of all tokens of a step are written before any are read, so a token sees itself and, in its layer,
everybody who came in the same step. k and v may be strided (slices of one fused product).

A value that is no number is muted: stored as zero, under a key of NaN. For 0 x NaN is NaN: a hidden value would spoil
the sums of tokens that do not see it, a wrong guess those of the words before it. A hidden key spoils nothing, as its
score is thrown away, and whoever sees it still gets NaN. Invariant: values are finite.

With scales (narrow.py) a key and a value are each stored as narrow numbers and a scale: scales[block, head, offset]."""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .jit import Floats, compiled, flat
from .narrow import Numbers, Scales, narrow_row, narrow_spec

Strides = tuple[int, int]  # from token to token and head to head
Rows = tuple[Floats, Strides]  # k or v [T, K, D]
Slots = NDArray[np.int64]

ZERO, NAN = np.float32(0), np.float32(math.nan)


def write_kv_spec(
    k: Tensor, v: Tensor, keys: Tensor, values: Tensor, slot_mapping: Tensor, scales: Scales | None = None
) -> None:
    """k, v [T, K, D] into keys, values [B, K, P, D] at slot_mapping [T]; if they are narrow, scales [B, K, P] each."""
    written = slot_mapping >= 0
    slots, block_size = slot_mapping[written], keys.shape[2]
    is_mute = ~v.isfinite().all(-1, keepdim=True)  # [T, K, 1]
    k, v = k.masked_fill(is_mute, math.nan), v.masked_fill(is_mute, 0)
    block, offset = slots // block_size, slots % block_size
    if scales is None:
        keys[block, :, offset], values[block, :, offset] = k[written], v[written]
        return
    for x, cache, of_cache in zip((k[written], v[written]), (keys, values), scales, strict=True):
        cache[block, :, offset], of_cache[block, :, offset] = narrow_spec(x, cache.dtype)


def write_kv_cpu(
    k: Tensor, v: Tensor, keys: Tensor, values: Tensor, slot_mapping: Tensor, scales: Scales | None = None
) -> None:
    """The same, on float32 tensors of a CPU, into a cache of float32, or of int8 with scales."""
    _, num_kv_heads, _, head_dim = keys.shape
    kept = torch.float32 if scales is None else torch.int8
    assert keys.shape == values.shape, f"keys {keys.shape}, values {values.shape}"
    assert k.shape == v.shape == (len(slot_mapping), num_kv_heads, head_dim), f"k {k.shape}, keys {keys.shape}"
    assert k.dtype == v.dtype == torch.float32, f"{k.dtype}, {v.dtype}"
    assert keys.dtype == values.dtype == kept, f"{keys.dtype} is not {kept}"
    if not k.numel():
        return
    rows = (flat(k), (k.stride(0), k.stride(1))), (flat(v), (v.stride(0), v.stride(1)))
    pools, slots = (keys.numpy(), values.numpy()), slot_mapping.numpy()
    if scales is None:
        write_all(rows, pools, slots)
    else:
        write_all_narrow(rows, pools, (scales[0].numpy(), scales[1].numpy()), slots)


@compiled()
def write_all(rows: tuple[Rows, Rows], pools: tuple[Floats, Floats], slot_mapping: Slots) -> None:
    """Keys, then values: one call for both, as a decode has little to write in each."""
    (k, v), (keys, values) = rows, pools
    write_rows(k[0], k[1], keys, slot_mapping)
    write_rows(v[0], v[1], values, slot_mapping)
    mute(keys, values, slot_mapping)


@compiled()
def write_all_narrow(
    rows: tuple[Rows, Rows], pools: tuple[Numbers, Numbers], scales: tuple[Floats, Floats], slot_mapping: Slots
) -> None:
    (k, v), (keys, values), (of_keys, of_values) = rows, pools, scales
    write_narrow(k[0], k[1], keys, of_keys, slot_mapping)
    write_narrow(v[0], v[1], values, of_values, slot_mapping)
    mute_scales(of_keys, of_values, slot_mapping)


@compiled()
def write_rows(new: Floats, strides: Strides, cache: Floats, slot_mapping: Slots) -> None:
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
def mute(keys: Floats, values: Floats, slot_mapping: Slots) -> None:
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


@compiled()
def write_narrow(new: Floats, strides: Strides, cache: Numbers, scales: Floats, slot_mapping: Slots) -> None:
    """new [T, K, D] into cache [B, K, P, D] and scales [B, K, P]; strides as for write_rows."""
    (new_t, new_h), (_, num_kv_heads, block_size, _) = strides, cache.shape
    for t in range(len(slot_mapping)):
        if slot_mapping[t] >= 0:
            block, offset = slot_mapping[t] // block_size, slot_mapping[t] % block_size
            for head in range(num_kv_heads):
                row = new[t * new_t + head * new_h :]
                scales[block, head, offset] = narrow_row(row, cache[block, head, offset])


@compiled()
def mute_scales(of_keys: Floats, of_values: Floats, slot_mapping: Slots) -> None:
    """Scales [B, K, P], of which these slots were written just now."""
    block_size = of_values.shape[2]
    for slot in slot_mapping:
        for head in range(of_values.shape[1] if slot >= 0 else 0):
            block, offset = slot // block_size, slot % block_size
            if np.isnan(of_values[block, head, offset]):
                of_values[block, head, offset], of_keys[block, head, offset] = ZERO, NAN
