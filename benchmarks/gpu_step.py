"""What a decode step costs beside what it must: every weight, every key and every value read once.

    python -m benchmarks.gpu_step --out FILE [--dry-run]

    floor     (weight bytes + KV bytes) / measured copy rate
    device    the forward alone: as many as fit between two events, queued behind one another
    step      what an engine waits for: integers to the device, forward, draw, tokens back
    host      (step - device) / step: what the GPU has nothing to do for, if a step waits for the one before

A shape of 8 billion parameters in bfloat16, 1 and 64 sequences of 4,096 tokens, in blocks dealt at random; launched
anew each time and recorded (minipaged/graphs.py), keys and values as they are and narrow. A dry run has a tiny model on
a CPU, where what stands for a recording runs the same work again."""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import torch

from benchmarks.gpu_shapes import make_folder
from benchmarks.kernels import measure_rates
from minipaged.batch import Batch, Row
from minipaged.config import EngineConfig
from minipaged.graphs import Eager, Graphs, Replay
from minipaged.kv_cache import NARROW, KVCache
from minipaged.loading import load_model
from minipaged.runner import ModelRunner
from minipaged.sampling_params import SamplingParams

BLOCK_SIZE, REPETITIONS = 16, 3
GREEDY = SamplingParams(temperature=0)


@dataclass(frozen=True)
class StepFigure:
    way: str
    kept: str
    num_seqs: int
    context: int
    floor_ms: float
    device_ms: float
    step_ms: float

    @property
    def share(self) -> float:
        """Of the floor's rate, by the forward alone."""
        return self.floor_ms / self.device_ms

    @property
    def host_share(self) -> float:
        return max(0.0, 1 - self.device_ms / self.step_ms)


class Rerun:
    """Where nothing can be recorded: the same work again."""

    num_bytes = 0

    def __call__(self, work: Callable[[], object]) -> Replay:
        work()
        return work


def make_batch(num_seqs: int, context: int) -> Batch:
    """The newest token of each sequence, which has so many keys with it."""
    width = -(-context // BLOCK_SIZE)
    blocks = torch.randperm(num_seqs * width, generator=torch.Generator().manual_seed(0)).view(num_seqs, width).tolist()
    starts, last = list(range(num_seqs + 1)), context - 1
    slots = [table[last // BLOCK_SIZE] * BLOCK_SIZE + last % BLOCK_SIZE for table in blocks]
    rows = [Row(GREEDY, seed=0, position=context)] * num_seqs
    lens = [context] * num_seqs
    return Batch([5] * num_seqs, [last] * num_seqs, slots, starts, lens, blocks, starts[:-1], starts, rows, [])


def count_bytes(model: ModelRunner, cache: KVCache, batch: Batch) -> int:
    """Read at least once: all weights but the rows of an embedding that nobody is at, and all keys and values."""
    config = model.model_config
    table = 0 if config.tie_word_embeddings else config.vocab_size * config.hidden_size * model.dtype.itemsize
    per_slot = cache.num_bytes / (cache.num_blocks * cache.block_size)
    return int(model.model.num_weight_bytes - table + sum(batch.seq_lens) * per_slot)


def seconds_each(work: Callable[[], object], calls: int, device: torch.device) -> float:
    """Of calls that are queued behind one another."""
    if device.type == "cpu":
        start = time.perf_counter()
        for _ in range(calls):
            work()
        return (time.perf_counter() - start) / calls
    start_event, end_event = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start_event.record()
    for _ in range(calls):
        work()
    end_event.record()
    end_event.synchronize()
    return start_event.elapsed_time(end_event) / 1e3 / calls


def measure(model: ModelRunner, sizes: list[tuple[int, int]], rate: float, calls: int) -> Iterator[StepFigure]:
    """rate: bytes a second. sizes: (sequences, context)."""
    most = max(num_seqs for num_seqs, _ in sizes)
    graphs = model.forward if isinstance(model.forward, Graphs) else None
    ways: dict[str, Eager | Graphs] = {
        "launched": model.eager,
        "recorded": graphs or Graphs(model.eager, most, model.vocab_size, Rerun()),
    }
    for num_seqs, context in sizes:
        batch = make_batch(num_seqs, context)
        for kept in ("auto", *NARROW):
            if kept == "fp8" and (model.device.type == "cpu" or torch.cuda.get_device_capability() < (8, 9)):
                continue
            cache = new_cache(model, kept, num_seqs * len(batch.block_tables[0]))
            for way in ways if kept == "auto" else ("recorded",):
                yield measure_one(model, ways[way], way, kept, cache, batch, rate, calls)
            del cache


def new_cache(model: ModelRunner, kept: str, num_blocks: int) -> KVCache:
    dtype, head_dim = NARROW.get(kept, model.dtype), model.model_config.head_dim
    cache = KVCache(num_blocks, BLOCK_SIZE, model.model.portion, head_dim, dtype, model.device)
    cache.data.view(torch.int8).zero_()
    cache.scales.fill_(0.01)
    return cache


def measure_one(
    model: ModelRunner,
    forward: Eager | Graphs,
    way: str,
    kept: str,
    cache: KVCache,
    batch: Batch,
    rate: float,
    calls: int,
) -> StepFigure:
    def step() -> None:
        model.sample(forward(batch, cache), batch.rows)

    step()  # compiled, recorded
    device = [seconds_each(lambda: forward(batch, cache), calls, model.device) for _ in range(REPETITIONS)]
    starts = [time.perf_counter()]
    for _ in range(calls):
        step()
        starts.append(time.perf_counter())
    whole = [end - start for start, end in pairwise(starts)]
    floor = count_bytes(model, cache, batch) / rate
    milliseconds = (1e3 * t for t in (floor, median(device), median(whole)))
    return StepFigure(way, kept, len(batch.seq_lens), batch.seq_lens[0], *milliseconds)


def show(figure: StepFigure) -> None:
    name = f"{figure.num_seqs} x {figure.context}, {figure.way}, kv {figure.kept}"
    times = f"floor {figure.floor_ms:8.3f} ms, device {figure.device_ms:8.3f}, step {figure.step_ms:8.3f}"
    print(f"{name:<34} {times}: {figure.share:6.1%} of the floor's rate, host {figure.host_share:5.1%}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_step", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="the document's file")
    parser.add_argument("--dry-run", action="store_true", help="a tiny model on a CPU: no claim")
    args = parser.parse_args()
    shape, sizes, calls = ("tiny", [(1, 20), (3, 20)], 2) if args.dry_run else ("8B", [(1, 4096), (64, 4096)], 20)
    device = torch.device("cpu" if args.dry_run else "cuda")
    with TemporaryDirectory() as parent:
        folder = str(make_folder(shape, Path(parent)))
        most = max(num_seqs for num_seqs, _ in sizes)
        config = EngineConfig(folder, device.type, load_format="dummy", max_num_seqs=most, num_blocks=1)
        model = load_model(config)
    rate, figures = 1e9 * measure_rates(device).copy_gb_s, list[StepFigure]()
    with torch.inference_mode():
        for figure in measure(model, sizes, rate, calls):
            show(figure)
            figures.append(figure)
    document = [asdict(f) | {"share": f.share, "host_share": f.host_share} for f in figures]
    args.out.write_text(json.dumps({"shape": shape, "copy_gb_s": rate / 1e9, "figures": document}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
