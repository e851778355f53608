"""Attention and the KV cache's writes at given sizes, each with whoever does the same work (kernel_cases.py)."""

import warnings
from collections.abc import Callable
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.kernel_case import Case, Sizes, on_a_cpu, randn
from minipaged.kernels.paged_attention import ALL_KEYS, paged_attention_spec
from minipaged.kernels.paged_attention_triton import paged_attention
from minipaged.kernels.prompt_attention import attention_cpu
from minipaged.kernels.write_kv import write_kv_cpu, write_kv_spec
from minipaged.kernels.write_kv_triton import write_kv


def attention_case(shape: str, sizes: Sizes, device: torch.device, S: int, m: int, n: int) -> Case:
    """S sequences with m tokens in this step and n keys each."""
    H, K, D, P = sizes.num_heads, sizes.num_kv_heads, sizes.head_dim, sizes.block_size
    num_blocks = -(-n // P)
    q = randn(sizes, device, S * m, H, D)
    keys, values = randn(sizes, device, 2, S * num_blocks, K, P, D)
    tables = torch.randperm(S * num_blocks, dtype=torch.int32).view(S, num_blocks).to(device)
    starts = torch.tensor([0, *accumulate([m] * S)], dtype=torch.int32, device=device)
    batch = q, keys, values, tables, starts, torch.full((S,), n, dtype=torch.int32, device=device), ALL_KEYS
    dense = [side_by_side(pool, tables, n) for pool in (keys, values)]  # [S, K, n, D] each
    q_dense = q.view(S, m, H, D).transpose(1, 2)  # [S, H, m, D]
    ways: dict[str, Callable[[], object]] = {
        "triton": lambda: paged_attention(*batch, m, n),
        "spec": lambda: paged_attention_spec(*batch),
        "torch": lambda: scaled_dot_product_attention(q_dense, *dense, is_causal=m > 1, enable_gqa=True),
    }
    ways |= {"flex": flex_way(q_dense, *dense)} | on_a_cpu(device, lambda: attention_cpu(*batch))
    pairs = S * (m * n - m * (m - 1) // 2)
    moved = (2 * q.numel() + 2 * S * n * K * D) * q.element_size()
    return Case("paged_attention", shape, moved, 4 * H * D * pairs, ways)


def narrow_case(shape: str, sizes: Sizes, device: torch.device, S: int, n: int) -> Case:
    """Decodes of S sequences with n keys each, of which a byte is kept of every number, and a scale a row."""
    H, K, D, P = sizes.num_heads, sizes.num_kv_heads, sizes.head_dim, sizes.block_size
    num_blocks = -(-n // P)
    pools = torch.randint(-127, 128, (2, S * num_blocks, K, P, D), dtype=torch.int8, device=device)
    of_keys, of_values = 0.01 + torch.rand(2, S * num_blocks, K, P, device=device)
    tables = torch.randperm(S * num_blocks, dtype=torch.int32).view(S, num_blocks).to(device)
    starts = torch.arange(S + 1, dtype=torch.int32, device=device)
    lens, q = torch.full((S,), n, dtype=torch.int32, device=device), randn(sizes, device, S, H, D)
    batch, scales = (q, *pools, tables, starts, lens, ALL_KEYS), (of_keys, of_values)
    ways: dict[str, Callable[[], object]] = {
        "triton": lambda: paged_attention(*batch, 1, n, scales=scales),
        "spec": lambda: paged_attention_spec(*batch, scales),
    }
    ways |= on_a_cpu(device, lambda: attention_cpu(*batch, scales))
    moved = 2 * q.nbytes + 2 * S * n * K * (D + of_keys.itemsize)
    return Case("paged_attention", shape, moved, 4 * H * D * S * n, ways)


def flex_way(q: Tensor, k: Tensor, v: Tensor) -> Callable[[], object]:
    """q [S, H, m, D], k and v [S, K, n, D]; m = 1, or m = n and causal. Not compiled it warns that it is slow."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def is_before(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return j <= i

    m, n = q.shape[2], k.shape[2]
    mask = create_block_mask(is_before, None, None, m, n, device=str(q.device)) if m > 1 else None
    attend = torch.compile(flex_attention, dynamic=False) if q.is_cuda else flex_attention

    def work() -> object:
        with warnings.catch_warnings(action="ignore"):
            return attend(q, k, v, block_mask=mask, enable_gqa=True)

    return work


def side_by_side(pool: Tensor, tables: Tensor, n: int) -> Tensor:
    """pool [B, K, P, D], tables [S, n / P] -> [S, K, n, D]"""
    return pool[tables.long()].transpose(1, 2).flatten(2, 3)[:, :, :n].contiguous()


def write_case(sizes: Sizes, device: torch.device) -> Case:
    T, K, D, P = sizes.num_tokens, sizes.num_kv_heads, sizes.head_dim, sizes.block_size
    k, v = randn(sizes, device, 2, T, K, D)
    pool = randn(sizes, device, 2, 2 * -(-T // P), K, P, D)
    slots = torch.randperm(len(pool[0]) * P)[:T].to(device)
    ways: dict[str, Callable[[], object]] = {
        "triton": lambda: write_kv(k, v, *pool, slots),
        "spec": lambda: write_kv_spec(k, v, *pool, slots),
    }
    ways |= on_a_cpu(device, lambda: write_kv_cpu(k, v, *pool, slots))
    return Case("write_kv", f"{T} tokens", 4 * k.numel() * k.element_size(), 0, ways)
