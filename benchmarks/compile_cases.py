"""Which launches are compiled: the shapes of real models in bfloat16, on tensors without memory.

heads of 64 and 128, groups of 1, 4 and 8 query heads, blocks of 16      as in Llama 3 and Qwen 3
keys and values as they are, or narrow: int8, fp8
vocabularies of 49,152 and 151,936
2 of 8 and 8 of 128 experts                                              as in Mixtral 8x7B and Qwen3-30B-A3B
products of 16 and 1,024 rows with 28,672 x 4,096 codes                  gate and up of an 8B Llama"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from minipaged.kernels import (
    fused_moe_triton,
    linear_int4_triton,
    linear_int8_triton,
    paged_attention_triton,
    rms_norm_triton,
    rope_triton,
    routing_triton,
    sample_triton,
    silu_mul_triton,
    write_kv_triton,
)
from minipaged.kernels.narrow import LARGEST, Scales
from minipaged.kernels.paged_attention_triton import paged_attention

KV_HEADS = 8


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def new_pool(head_dim: int, kept: torch.dtype) -> tuple[Tensor, Tensor, Scales | None]:
    """Keys, values, and their scales if they are narrow."""
    keys, values = meta(2, 100, KV_HEADS, 16, head_dim, dtype=kept)
    of_keys, of_values = meta(2, 100, KV_HEADS, 16, dtype=torch.float32)
    return keys, values, (of_keys, of_values) if kept in LARGEST else None


def attend(
    head_dim: int, group_size: int, num_queries: int, splits: int = 1, kept: torch.dtype = torch.bfloat16
) -> None:
    num_heads, num_seqs = KV_HEADS * group_size, 4
    keys, values, scales = new_pool(head_dim, kept)
    integers = partial(meta, dtype=torch.int32)
    q = meta(num_seqs * num_queries, num_heads + 2 * KV_HEADS, head_dim)[:, :num_heads]  # a slice of a fused qkv
    usual = paged_attention_triton.choose_tiles(q, keys, num_seqs, num_queries, 4096)
    tables, starts, lens = integers(num_seqs, 256), integers(num_seqs + 1), integers(num_seqs)
    tiles = usual._replace(splits=splits)
    paged_attention(q, keys, values, tables, starts, lens, 1 << 30, num_queries, 4096, tiles, scales)


def write(head_dim: int, kept: torch.dtype = torch.bfloat16) -> None:
    (k, v), (keys, values, scales) = meta(2, 64, KV_HEADS, head_dim), new_pool(head_dim, kept)
    write_kv_triton.write_kv(k, v, keys, values, meta(64, dtype=torch.int64), scales)


def draw(vocab_size: int, edited: bool) -> None:
    R, E = 256, 1000
    numbers, integers, ids = (partial(meta, dtype=dtype) for dtype in (torch.float64, torch.int64, torch.int32))
    asked = sample_triton.Asked(numbers(R), numbers(R), integers(R), numbers(R), integers(R), integers(R))
    bias, penalties = meta(E, dtype=torch.float32), [numbers(R) for _ in range(3)]
    edits = sample_triton.Edits(ids(R + 1), ids(E), ids(E), bias, *penalties) if edited else None
    allowed = ids(R, -(-vocab_size // 32)) if edited else None
    sample_triton.sample(meta(R, vocab_size, dtype=torch.float32), asked, edits, allowed)


def mix(num_experts: int, k: int, hidden: int, size: int, num_tokens: int) -> None:
    gate_up, down = meta(num_experts, 2 * size, hidden), meta(num_experts, hidden, size)
    sources, starts = meta(num_tokens * k, dtype=torch.int64), meta(num_experts + 1, dtype=torch.int64)
    fused_moe_triton.fused_moe(meta(num_tokens, hidden), gate_up, down, sources, starts)


def multiply(codes_dtype: torch.dtype, num_rows: int) -> None:
    N, K = 28672, 4096
    x, scale = meta(num_rows, K), meta(N, dtype=torch.float32)
    linear_int8_triton.linear_int8(x, meta(N, K, dtype=codes_dtype), scale)


def multiply_int4(num_rows: int) -> None:
    N, K = 28672, 4096
    codes, grid = meta(N, K // 2, dtype=torch.uint8), meta(2, N, K // 32)
    linear_int4_triton.linear_int4(meta(num_rows, K), codes, *grid)


def cases() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Shapes by name, and the launcher that is called with them."""
    for head_dim in (64, 128):
        for group_size in (1, 4, 8):
            name = f"D {head_dim}, G {group_size}"
            yield f"{name}, decode", partial(attend, head_dim, group_size, 1)
            yield f"{name}, prompt", partial(attend, head_dim, group_size, 1024)
        yield f"D {head_dim}, G 4, decode, 8 splits", partial(attend, head_dim, 4, 1, 8)
        yield f"K {KV_HEADS}, D {head_dim}", partial(write, head_dim)
        for kept in LARGEST:
            kind = str(kept).removeprefix("torch.")
            for group_size in (1, 4):
                name = f"D {head_dim}, G {group_size}, {kind}"
                yield f"{name}, decode", partial(attend, head_dim, group_size, 1, kept=kept)
                yield f"{name}, prompt", partial(attend, head_dim, group_size, 1024, kept=kept)
            yield f"K {KV_HEADS}, D {head_dim}, {kind}", partial(write, head_dim, kept)
        angles = meta(64, 1, head_dim // 2)
        yield f"H 32, D {head_dim}", partial(rope_triton.rope, meta(64, 48, head_dim)[:, :32], angles, angles)
    for size in (576, 4096, 8192):
        yield f"M {size}", partial(rms_norm_triton.rms_norm, meta(64, size), meta(size), 1e-5)
        yield (
            f"M {size}, added",
            partial(rms_norm_triton.add_rms_norm, meta(64, size), meta(64, size), meta(size), 1e-5),
        )
    yield "F 14336", partial(silu_mul_triton.silu_mul, meta(64, 2 * 14336))
    for num_experts, k, hidden, size in ((8, 2, 4096, 14336), (128, 8, 2048, 768)):
        yield f"{k} of {num_experts}", partial(routing_triton.route, meta(64, num_experts), k, True)
        for num_tokens in (16, 8192):
            sizes = num_experts, k, hidden, size, num_tokens
            yield f"{k} of {num_experts}, M {hidden}, F {size}, T {num_tokens}", partial(mix, *sizes)
    for num_rows in (16, 64, 1024):
        yield f"int8, T {num_rows}", partial(multiply, torch.int8, num_rows)
        yield f"fp8, T {num_rows}", partial(multiply, torch.float8_e4m3fn, num_rows)
        yield f"int4, T {num_rows}", partial(multiply_int4, num_rows)
    for vocab_size in (49152, 151936):
        yield f"V {vocab_size}", partial(draw, vocab_size, False)
        yield f"V {vocab_size}, edited and masked", partial(draw, vocab_size, True)
