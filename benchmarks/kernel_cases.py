"""The kernels at the shapes of a model of 8 billion parameters, each with whoever does the same work.

    Case    what must move (bytes) and be multiplied (flop) at the very least, and the ways to do it by name:
            triton      the kernel             spec     its specification in torch
            torch       torch's own, if it has one: on keys and values that already lie side by side, not in blocks
            flex        its FlexAttention, compiled on a GPU, on the same
            cpu         the compiled loops that a CPU runs

The importer says where Triton is to run before it imports this (kernels.py)."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import rms_norm as torch_rms_norm
from torch.nn.functional import silu

from benchmarks.attention_cases import attention_case, narrow_case, write_case
from benchmarks.kernel_case import Case, Sizes, on_a_cpu, randn
from minipaged.kernels.fused_moe import fused_moe_spec, fused_moe_torch, sort_by_expert
from minipaged.kernels.fused_moe_triton import fused_moe
from minipaged.kernels.rms_norm import add_rms_norm_cpu, add_rms_norm_spec, rms_norm_cpu, rms_norm_spec
from minipaged.kernels.rms_norm_triton import add_rms_norm, rms_norm
from minipaged.kernels.rope import rope_cpu, rope_spec
from minipaged.kernels.rope_triton import rope
from minipaged.kernels.routing import route_spec
from minipaged.kernels.routing_triton import route
from minipaged.kernels.sample import sample_spec
from minipaged.kernels.sample_triton import Asked, sample
from minipaged.kernels.silu_mul import silu_mul_cpu, silu_mul_spec
from minipaged.kernels.silu_mul_triton import silu_mul

EPS = 1e-5


def make_cases(sizes: Sizes, device: torch.device) -> Iterator[Case]:
    T, context = sizes.num_tokens, sizes.context
    yield attention_case(f"{sizes.num_decodes} decodes at {context}", sizes, device, sizes.num_decodes, 1, context)
    yield attention_case(f"1 decode at {8 * context}", sizes, device, 1, 1, 8 * context)
    yield attention_case(f"prompt of {T}", sizes, device, 1, T, T)
    yield narrow_case(f"{sizes.num_decodes} decodes, int8", sizes, device, sizes.num_decodes, context)
    yield write_case(sizes, device)
    yield from norm_cases(sizes, device)
    yield rope_case(sizes, device)
    yield silu_mul_case(sizes, device)
    yield routing_case(sizes, device)
    for num_tokens in (sizes.num_decodes, T):
        yield moe_case(num_tokens, sizes, device)
    for name, cuts in {"greedy": (0.0, 0, 1.0), "random": (0.8, 0, 1.0), "top_k, top_p": (0.8, 50, 0.9)}.items():
        yield sample_case(name, sizes, device, *cuts)


def norm_cases(sizes: Sizes, device: torch.device) -> Iterator[Case]:
    T, M = sizes.num_tokens, sizes.hidden
    x, residual, weight = (randn(sizes, device, *shape) for shape in ((T, M), (T, M), (M,)))
    row_bytes = x.numel() * x.element_size()
    ways: dict[str, Callable[[], object]] = {
        "triton": lambda: rms_norm(x, weight, EPS),
        "spec": lambda: rms_norm_spec(x, weight, EPS),
        "torch": lambda: torch_rms_norm(x, (M,), weight, EPS),
    }
    ways |= on_a_cpu(device, lambda: rms_norm_cpu(x, weight, EPS))
    yield Case("rms_norm", f"{T} x {M}", 2 * row_bytes, 0, ways)
    ways = {
        "triton": lambda: add_rms_norm(x, residual, weight, EPS),
        "spec": lambda: add_rms_norm_spec(x, residual, weight, EPS),
        "torch": lambda: torch_rms_norm(x + residual, (M,), weight, EPS),
    }
    ways |= on_a_cpu(device, lambda: add_rms_norm_cpu(x, residual, weight, EPS))
    yield Case("add_rms_norm", f"{T} x {M}", 4 * row_bytes, 0, ways)


def rope_case(sizes: Sizes, device: torch.device) -> Case:
    T, H, D = sizes.num_tokens, sizes.num_heads, sizes.head_dim
    x, cos, sin = randn(sizes, device, T, H, D), *randn(sizes, device, 2, T, 1, D // 2)
    moved = (2 * x.numel() + 2 * cos.numel()) * x.element_size()
    ways: dict[str, Callable[[], object]] = {
        "triton": lambda: rope(x, cos, sin),
        "spec": lambda: rope_spec(x, cos, sin),
    }
    ways |= on_a_cpu(device, lambda: rope_cpu(x, cos, sin))
    return Case("rope", f"{T} x {H} x {D}", moved, 0, ways)


def silu_mul_case(sizes: Sizes, device: torch.device) -> Case:
    T, F = sizes.num_tokens, sizes.mlp
    gate_up = randn(sizes, device, T, 2 * F)
    gate, up = gate_up.chunk(2, dim=-1)
    ways: dict[str, Callable[[], object]] = {
        "triton": lambda: silu_mul(gate_up),
        "spec": lambda: silu_mul_spec(gate_up),
        "torch": lambda: silu(gate).mul_(up),
    }
    ways |= on_a_cpu(device, lambda: silu_mul_cpu(gate_up))
    return Case("silu_mul", f"{T} x {F}", 3 * T * F * gate_up.element_size(), 0, ways)


def routing_case(sizes: Sizes, device: torch.device) -> Case:
    T, E, k = sizes.num_tokens, sizes.num_experts, sizes.k
    logits = randn(sizes, device, T, E)
    ways: dict[str, Callable[[], object]] = {
        "triton": lambda: route(logits, k, True),
        "spec": lambda: route_spec(logits, k, True),
    }
    return Case("routing", f"{T} x {k} of {E}", logits.nbytes + T * k * 12, 0, ways)


def moe_case(num_tokens: int, sizes: Sizes, device: torch.device) -> Case:
    """torch: one product after the other, once it knows how many rows each expert has; the specification has no time
    to copy a matrix for every row."""
    T, M, F, E, k = num_tokens, sizes.hidden, sizes.mlp, sizes.num_experts, sizes.k
    x, gate_up, down = (randn(sizes, device, *shape) / 64 for shape in ((T, M), (E, 2 * F, M), (E, M, F)))
    order, starts = sort_by_expert(torch.randint(E, (T * k,)).to(device), E)
    rows = x, gate_up, down, order // k, starts
    ways: dict[str, Callable[[], object]] = {
        "triton": lambda: fused_moe(*rows),
        "torch": lambda: fused_moe_torch(*rows),
    }
    if T * k <= 64:
        ways["spec"] = lambda: fused_moe_spec(*rows)
    used = int((starts.diff() > 0).sum())
    moved = used * 3 * M * F * x.element_size() + T * (1 + k) * M * x.element_size()
    return Case("fused_moe", f"{T} x {k} of {E}", moved, 6 * T * k * M * F, ways)


def sample_case(name: str, sizes: Sizes, device: torch.device, temperature: float, top_k: int, top_p: float) -> Case:
    """torch: what one does without a kernel, whole rows sorted where they are cut."""
    R, V = sizes.num_rows, sizes.vocab_size
    logits = 3 * torch.randn(R, V, device=device)
    floats, integers = (partial(torch.full, (R,), dtype=dtype, device=device) for dtype in (torch.float64, torch.int64))
    asked = Asked(floats(temperature), floats(0.0), integers(top_k), floats(top_p), integers(7), integers(0))
    ways: dict[str, Callable[[], object]] = {
        "triton": lambda: sample(logits, asked),
        "spec": lambda: [sample_spec(row, temperature, 0.0, top_k, top_p, 0.5) for row in logits],
        "torch": lambda: torch_sample(logits, temperature, top_k, top_p),
    }
    return Case("sample", f"{R} x {V}, {name}", logits.nbytes, 0, ways)


def torch_sample(logits: Tensor, temperature: float, top_k: int, top_p: float) -> Tensor:
    if temperature == 0:
        return logits.argmax(-1)
    probs = (logits / temperature).softmax(-1)
    if top_k > 0:
        best = probs.sort(descending=True)
        kept = best.values.clone()
        kept[:, top_k:] = 0
        kept[kept.cumsum(-1) - kept >= top_p * kept.sum(-1, keepdim=True)] = 0
        probs = torch.zeros_like(probs).scatter_(-1, best.indices, kept)
    return torch.multinomial(probs, 1)
