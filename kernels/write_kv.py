"""keys[block, head, offset] = k[token, head], and values likewise, where slot = block * P + offset; slot -1: nowhere.

    slot_mapping   [ 37  38  39  -1  112 ]      one slot per token of the batch, in any order

The keys and values of all tokens of a step are written before any are read, so a token sees itself and, in its layer,
everybody who came in the same step."""

from torch import Tensor


def write_kv_spec(k: Tensor, v: Tensor, keys: Tensor, values: Tensor, slot_mapping: Tensor) -> None:
    """k, v [T, K, D] into keys, values [B, K, P, D] at slot_mapping [T]."""
    written = slot_mapping >= 0
    slots, block_size = slot_mapping[written], keys.shape[2]
    block, offset = slots // block_size, slots % block_size
    keys[block, :, offset] = k[written]
    values[block, :, offset] = v[written]
