"""Attention is where tokens meet: write this step's keys and values, then let every token look back at its sequence's.

    attend(q, k, v, layer_cache, batch) -> out          one call for prompts, chunks and decodes alike

    torch     the specification in kernels/, on any device and in any dtype; float32 on a CPU has a fast twin, for a
              cache of float32 or int8
    triton    the same on a GPU, in kernels/*_triton.py: triton_ops.py

Chosen once, in ops.py, where the model is put together. Invariant: all of a step's keys and values are in
their slots before the first is read. (From level 01.)"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from .input_batch import InputBatch
from .kernels.paged_attention import ALL_KEYS, paged_attention_cpu, paged_attention_spec
from .kernels.prompt_attention import MANY, attention_cpu
from .kernels.write_kv import write_kv_cpu, write_kv_spec
from .kv_cache import NARROW, LayerCache

Attend = Callable[[Tensor, Tensor, Tensor, LayerCache, InputBatch], Tensor]


def choose_attend(dtype: torch.dtype, kept: str, device: torch.device, window: int | None) -> Attend:
    """The torch implementation for one layer; kept: its kv_cache_dtype, `window` its sliding window."""
    twin = device.type == "cpu" and dtype == torch.float32 and NARROW.get(kept) in (None, torch.int8)
    return partial(attend_cpu if twin else attend_spec, ALL_KEYS if window is None else window)


def attend_spec(window: int, q: Tensor, k: Tensor, v: Tensor, cache: LayerCache, batch: InputBatch) -> Tensor:
    """q [T, H, D], k and v [T, K, D] -> [T, H, D]"""
    keys, values, scales = cache
    write_kv_spec(k, v, keys, values, batch.slot_mapping, scales)
    ragged = batch.block_tables, batch.query_start_loc, batch.seq_lens
    return paged_attention_spec(q, keys, values, *ragged, window, scales)


def attend_cpu(window: int, q: Tensor, k: Tensor, v: Tensor, cache: LayerCache, batch: InputBatch) -> Tensor:
    """q [T, H, D], k and v [T, K, D] -> [T, H, D]"""
    keys, values, scales = cache
    write_kv_cpu(k, v, keys, values, batch.slot_mapping, scales)
    ragged = batch.block_tables, batch.query_start_loc, batch.seq_lens
    attention = attention_cpu if batch.max_query_len >= MANY else paged_attention_cpu
    return attention(q, keys, values, *ragged, window, scales)
