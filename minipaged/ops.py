"""Whatever is no matrix product comes in several makes, for a CPU and for a GPU, and is chosen once.

    Ops   make_attend(window)     attention over the sequence, the only place where tokens meet    attention.py
          rms_norm, add_rms_norm  a row over its root mean square; of a sum, and the sum
          rope                    pairs of a head turned by their token's angle
          silu_mul                one half of a row opens the other
          route, fused_moe        which experts a token is sent to; what experts say of their rows
          linear_int8, _int4      products with weights of 8 bits, and of 4

    attention_backend    torch     plain tensor operations; for float32 on a CPU compiled loops in their place
                         triton    the kernels of kernels/, one launch each
                                   (loops and kernels read and write each number once)

The model is put together with one of them and never asks which. A CPU cannot run what Triton compiles, but Triton can
interpret a kernel, line by line in Python: hopelessly slow, and the way to look inside one with a debugger. Invariant:
Triton learns whether to interpret before anything imports it, so kernels are imported late. (From level 01.)"""

import os
import sys
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as nn
from torch import Tensor

from .attention import Attend, choose_attend
from .kernels.fused_moe import fused_moe_torch
from .kernels.linear_int4 import linear_int4_cpu, linear_int4_spec
from .kernels.linear_int8 import linear_int8_cpu, linear_int8_spec
from .kernels.rms_norm import add_rms_norm_cpu, rms_norm_cpu
from .kernels.rope import rope_cpu, rope_spec
from .kernels.routing import route_spec
from .kernels.silu_mul import silu_mul_cpu, silu_mul_spec
from .progress import say


class Ops(NamedTuple):
    make_attend: Callable[[int | None], Attend]  # given a layer's sliding window
    rms_norm: Callable[[Tensor, Tensor, float], Tensor]  # x [..., size], weight [size], eps -> [..., size]
    add_rms_norm: Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]]  # of x + residual; and that sum
    rope: Callable[[Tensor, Tensor, Tensor], Tensor]  # x [T, H, D], cos and sin [T, 1, D / 2] -> [T, H, D]
    silu_mul: Callable[[Tensor], Tensor]  # [T, 2 F] -> [T, F]
    route: Callable[
        [Tensor, int, bool], tuple[Tensor, Tensor]
    ]  # logits [T, E], k, renormalise -> weights, experts [T, k]
    fused_moe: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]  # x, gate_up, down, sources, starts -> [A, M]
    linear_int8: Callable[[Tensor, Tensor, Tensor], Tensor]  # x [T, K], codes [N, K], scale [N] -> [T, N]
    linear_int4: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # x, codes [N, K / 2], scale, low [N, K / 32]


def choose_ops(backend: str, dtype: torch.dtype, device: torch.device, kept: str = "auto") -> Ops:
    """backend: torch or triton; kept: the KV cache's dtype, as in kv_cache_dtype."""
    if backend == "triton":
        from . import triton_ops as fast

        plain = fast.make_attend, fast.rms_norm, fast.add_rms_norm, fast.rope, fast.silu_mul
        return Ops(*plain, fast.route, fast.fused_moe, fast.linear_int8, fast.linear_int4)
    make_attend, moe = partial(choose_attend, dtype, kept, device), (route_spec, fused_moe_torch)
    if device.type == "cpu" and dtype == torch.float32:
        products = linear_int8_cpu, linear_int4_cpu
        return Ops(make_attend, rms_norm_cpu, add_rms_norm_cpu, rope_cpu, silu_mul_cpu, *moe, *products)
    return Ops(make_attend, rms_norm, add_rms_norm, rope_spec, silu_mul_spec, *moe, linear_int8_spec, linear_int4_spec)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [..., size] -> the same shape"""
    return nn.rms_norm(x, weight.shape, weight, eps)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x, residual [T, M] -> the norm of their sum, and the sum"""
    total = x + residual
    return rms_norm(total, weight, eps), total


def use_interpreter(dtype: str) -> None:
    """Have Triton interpret kernels. Raises ValueError if it cannot any more, or not with this dtype."""
    if dtype == "bfloat16":
        raise ValueError("dtype bfloat16: Triton's interpreter multiplies its bit patterns (use float32 or float16)")
    if "triton" not in sys.modules:
        os.environ["TRITON_INTERPRET"] = "1"
    import triton

    if isinstance(triton.language.zeros, triton.JITFunction):  # its own library was compiled
        raise ValueError(
            "attention_backend triton on a CPU: Triton is here already and compiles; set TRITON_INTERPRET=1"
        )
    say("attention_backend triton on a CPU: kernels are interpreted, very slowly, so that a debugger can step through")
