"""The kernels as the model calls them; to import this is to import Triton.

    attend_triton     write_kv, then paged_attention: two launches, and a third when long walks are split
    the others        as they are in kernels/

Chosen in ops.py, which imports this only if asked for Triton. (From level 01.)"""

from functools import partial

from torch import Tensor

from .attention import Attend
from .input_batch import InputBatch
from .kernels.fused_moe_triton import fused_moe
from .kernels.linear_int4_triton import linear_int4
from .kernels.linear_int8_triton import linear_int8
from .kernels.paged_attention import ALL_KEYS
from .kernels.paged_attention_triton import paged_attention
from .kernels.rms_norm_triton import add_rms_norm, rms_norm
from .kernels.rope_triton import rope
from .kernels.routing_triton import route
from .kernels.silu_mul_triton import silu_mul
from .kernels.write_kv_triton import write_kv
from .kv_cache import LayerCache

__all__ = [
    "add_rms_norm",
    "fused_moe",
    "linear_int4",
    "linear_int8",
    "make_attend",
    "rms_norm",
    "rope",
    "route",
    "silu_mul",
]


def make_attend(window: int | None) -> Attend:
    return partial(attend_triton, ALL_KEYS if window is None else window)


def attend_triton(window: int, q: Tensor, k: Tensor, v: Tensor, cache: LayerCache, batch: InputBatch) -> Tensor:
    """q [T, H, D], k and v [T, K, D] -> [T, H, D]"""
    keys, values, scales = cache
    write_kv(k, v, keys, values, batch.slot_mapping, scales)
    ragged = batch.block_tables, batch.query_start_loc, batch.seq_lens
    longest = batch.max_query_len, batch.max_seq_len
    return paged_attention(q, keys, values, *ragged, window, *longest, scales=scales)
