"""What this machine can do at best, measured in the same run: how fast it multiplies, how fast it reads memory.

    products   y = x W^T, float32, at a few shapes large enough to keep every core busy, in torch's order and packed as
               the engine has it; the best one counts
    reads      y = W x with a W of 512 MB, which no cache holds, and the sum of all its weights: the faster one counts

No engine that computes what it should in float32 can be faster than these two allow; floors.py says how much that is.
The best of several short windows, since whatever else runs can only make a window slower. As a program, `python -m
benchmarks.limits FOLDER` prints one JSON object (in its own process, as thread counts are fixed when torch starts)."""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn.functional import linear

from minipaged.models.config import read_model_config
from minipaged.models.linear import Linear

CPU = torch.device("cpu")
WINDOWS, WINDOW_S = 8, 0.1


@torch.inference_mode()
def measure_limits(folder: Path) -> dict[str, float]:
    """In GFLOP/s and GB/s, at the shapes of this model."""
    config = read_model_config(folder)
    shapes = [(256, 2 * config.intermediate_size, config.hidden_size), (1024, 2048, 1024), (2048, 2048, 2048)]
    return {
        "product_gflop_s": round(max(measure_product(*shape) for shape in shapes), 1),
        "memory_read_gb_s": round(measure_reads(), 1),
    }


def measure_product(rows: int, outputs: int, inputs: int) -> float:
    x, layer = torch.rand(rows, inputs), Linear(outputs, inputs, bias=False, dtype=torch.float32, device=CPU)
    layer.weight = weight = torch.rand(outputs, inputs)
    seconds = best_seconds(lambda: linear(x, weight))
    layer.pack()
    return 2e-9 * rows * outputs * inputs / min(seconds, best_seconds(lambda: layer(x)))


def measure_reads() -> float:
    weight, x = torch.ones(32768, 4096), torch.ones(4096)
    return 4e-9 * weight.numel() / min(best_seconds(lambda: weight @ x), best_seconds(weight.sum))


def best_seconds(work: Callable[[], object]) -> float:
    """Seconds per call, in the best of WINDOWS windows of at least WINDOW_S each."""
    work()
    return min(mean_seconds(work) for _ in range(WINDOWS))


def mean_seconds(work: Callable[[], object]) -> float:
    start, calls = time.perf_counter(), 0
    while (passed := time.perf_counter() - start) < WINDOW_S or not calls:
        work()
        calls += 1
    return passed / calls


if __name__ == "__main__":
    print(json.dumps(measure_limits(Path(sys.argv[1]))))
