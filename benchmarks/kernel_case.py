"""One piece of work, and whoever does it: what the kernels' benchmark is made of."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Sizes:
    """What a case is made of; `SMALL` only shows that everything runs."""

    num_tokens: int = 8192
    hidden: int = 4096
    mlp: int = 14336
    num_heads: int = 32
    num_kv_heads: int = 8
    head_dim: int = 128
    num_decodes: int = 64
    context: int = 4096
    num_rows: int = 256
    vocab_size: int = 49152
    num_experts: int = 8
    k: int = 2
    dtype: torch.dtype = torch.bfloat16
    block_size: int = 16


SMALL = Sizes(8, 64, 96, 4, 2, 32, 2, 40, 2, 96, 8, 2, torch.float32)


@dataclass(frozen=True)
class Case:
    kernel: str
    shape: str
    num_bytes: int
    flop: int
    ways: dict[str, Callable[[], object]]


def on_a_cpu(device: torch.device, loops: Callable[[], object]) -> dict[str, Callable[[], object]]:
    return {"cpu": loops} if device.type == "cpu" else {}


def randn(sizes: Sizes, device: torch.device, *shape: int) -> Tensor:
    return torch.randn(shape, dtype=sizes.dtype, device=device)
