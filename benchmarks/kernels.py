"""How near the kernels come to what the device can do, beside their specifications and torch's own.

    python -m benchmarks.kernels [--json FILE]

    share of bandwidth       bytes that must move / time / measured copy rate         (norms, rope, writes, decodes)
    share of matrix rate     flop that must be done / time / measured product rate    (prompts)

Both rates are measured in the same run, on the same device: a large copy, a large product. On a GPU the shapes are a
model's of 8 billion parameters in bfloat16, caches are flushed between calls, times are medians. On a CPU Triton only
interprets: tiny shapes in float32 show that everything runs, and the times say nothing about a GPU.

The document has the device's name, versions, the commit and every figure."""

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from benchmarks.machine import describe_commit, describe_machine, describe_versions, find_version
from minipaged.ops import use_interpreter


@dataclass(frozen=True)
class Rates:
    """What the device can do at best."""

    copy_gb_s: float
    product_tflop_s: float


@dataclass(frozen=True)
class Figure:
    kernel: str
    shape: str
    way: str
    ms: float
    share_of_bandwidth: float
    share_of_matrix_rate: float


def measure_rates(device: torch.device) -> Rates:
    on_gpu = device.type == "cuda"
    timer = gpu_seconds if on_gpu else few_seconds
    source = torch.empty(2**30 if on_gpu else 2**26, dtype=torch.uint8, device=device)
    target, n = torch.empty_like(source), 8192 if on_gpu else 1024
    a, b = torch.randn(2, n, n, device=device, dtype=torch.bfloat16 if on_gpu else torch.float32)
    copied = 2 * source.numel() / timer(lambda: target.copy_(source))  # read and written
    return Rates(copied / 1e9, 2 * n**3 / timer(lambda: a @ b) / 1e12)


def gpu_seconds(work: Callable[[], object]) -> float:
    from triton.testing import do_bench

    return float(do_bench(work, return_mode="median")) / 1e3


def few_seconds(work: Callable[[], object]) -> float:
    """The best of three calls: an interpreter's time is worth no more."""
    times = [time.perf_counter()]
    for _ in range(3):
        work()
        times.append(time.perf_counter())
    return min(end - start for start, end in pairwise(times))


def measure(case: Any, way: str, rates: Rates, seconds: float) -> Figure:
    bandwidth = case.num_bytes / seconds / 1e9 / rates.copy_gb_s
    product = case.flop / seconds / 1e12 / rates.product_tflop_s
    return Figure(case.kernel, case.shape, way, 1e3 * seconds, bandwidth, product)


def show(figure: Figure) -> None:
    shares = f"{figure.share_of_bandwidth:>8.1%} of bandwidth"
    if figure.share_of_matrix_rate:
        shares += f" {figure.share_of_matrix_rate:>8.1%} of the matrix rate"
    print(f"{figure.kernel:<16} {figure.shape:<22} {figure.way:<7} {figure.ms:>10.3f} ms {shares}", flush=True)


def describe_device(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU, interpreted: no claim about any GPU"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernels", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--json", type=Path, help="write the document there")
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu":
        use_interpreter("float32")
    from benchmarks.kernel_case import SMALL, Sizes
    from benchmarks.kernel_cases import make_cases  # late: Triton must know by now where it runs

    timer = gpu_seconds if device.type == "cuda" else few_seconds
    rates = measure_rates(device)
    print(f"{describe_device(device)}: copies {rates.copy_gb_s:.0f} GB/s, products {rates.product_tflop_s:.2f} TFLOP/s")
    figures: list[Figure] = []
    with torch.inference_mode():
        for case in make_cases(Sizes() if device.type == "cuda" else SMALL, device):
            for way, work in case.ways.items():
                figures.append(measure(case, way, rates, timer(work)))
                show(figures[-1])
    if args.json:
        args.json.write_text(json.dumps(make_document(device, rates, figures), indent=1))
    return 0


def make_document(device: torch.device, rates: Rates, figures: list[Figure]) -> dict[str, Any]:
    return {
        "device": describe_device(device),
        "machine": describe_machine(),
        "versions": describe_versions() | {"triton": find_version("triton")},
        **describe_commit(),
        "rates": asdict(rates),
        "figures": [asdict(figure) for figure in figures],
    }


if __name__ == "__main__":
    sys.exit(main())
