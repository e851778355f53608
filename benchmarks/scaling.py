"""What a step costs by what is in it, and that it costs nothing for what is not.

    python -m benchmarks.scaling               the model too: a few minutes
    python -m benchmarks.scaling --quick       fewer points, no model: half a minute

    batch      1 ... 256 sequences in the step           context    128 ... 8,192 tokens before each of them
    blocks     1,000 ... 1,000,000 in the pool           waiting    0 ... 100,000 requests in the queue
    behind     0 ... 10,000 steps made before for others     said       0 ... 8,000 tokens said before by each

Level 04's engine decodes one token for each sequence. On each axis the rest stays as it is in FIXED. The forward is
measured on the first two; on the others a stand-in says the same token for everybody and only the engine's own cost is
left: scheduling, blocks, packing into tensors, reports. A context is put there by running the stand-in over it: what
keys and values hold makes no difference to time. Expected: own cost grows with the batch; a little with the context,
for block tables are copied, and with what was said, for an output is a copy of all of it; and with nothing else.
Writes one JSON document and a picture drawn from it."""

import argparse
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from benchmarks.document import Record
from benchmarks.run import RESULTS, announce, describe_run, make_room
from benchmarks.scaling_plot import draw, print_table
from levels import load
from minipaged.batch import Batch, Row
from minipaged.cli import DONE, FAILED, Parser, guarded, write_json
from minipaged.config import DEFAULT_MODEL, EngineConfig
from minipaged.detokenizer import Detokenizer
from minipaged.input_batch import to_device
from minipaged.sampling_params import SamplingParams
from minipaged.vocabulary import Vocabulary

LEVEL, BLOCK_SIZE, VOCAB_SIZE, TOKEN = 4, 16, 1000, 7
FIXED = {"batch": 8, "context": 512, "blocks": 8192, "waiting": 0, "behind": 0, "said": 0}
AXES = {
    "batch": [1, 2, 4, 8, 16, 32, 64, 128, 256],
    "context": [128, 256, 512, 1024, 2048, 4096, 8192],
    "blocks": [1_000, 10_000, 100_000, 1_000_000],
    "waiting": [0, 10, 100, 1_000, 10_000, 100_000],
    "behind": [0, 100, 1_000, 10_000],
    "said": [0, 100, 1_000, 8_000],
}
QUICK = {axis: points[:: max(1, len(points) - 1)] for axis, points in AXES.items()}
WITH_MODEL = ("batch", "context")
STEPS, STEPS_WITH_MODEL, WARM_STEPS = 200, 8, 3


class StandIn:
    """Where the model is. Without a runner it says TOKEN for every row; with one, when `awake`, that runs first."""

    def __init__(self, runner: Any = None):
        self.runner, self.awake, self.forward_s, self.drafts = runner, False, 0.0, dict[str, Any]()
        self.inside_s = 0.0  # in forward and draw, by this thread's own clock: none of the engine's own cost

    @property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary(VOCAB_SIZE, frozenset(), None, Detokenizer(None), None)

    def resolve(self, config: EngineConfig) -> EngineConfig:
        return config

    def new_kv_cache(self, num_blocks: int, block_size: int) -> Any:
        return self.runner.new_kv_cache(num_blocks, block_size) if self.runner else None

    def __call__(self, batch: Batch, kv_cache: Any) -> Tensor | None:
        if not (self.runner and self.awake):
            to_device(batch, torch.device("cpu"))
            return None
        start = time.thread_time()
        logits: Tensor = self.runner(batch, kv_cache)
        self.inside_s += time.thread_time() - start
        return logits

    def sample(self, logits: Tensor | None, rows: list[Row]) -> list[int]:
        if logits is not None:
            start = time.thread_time()
            self.runner.sample(logits, rows)
            self.inside_s += time.thread_time() - start
        return [TOKEN] * len(rows)


def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(prog="python -m benchmarks.scaling", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="the ends of each axis, without the model")
    parser.add_argument("--no-model", action="store_true", help="the engine's own cost alone")
    parser.add_argument("--axes", metavar="A,B", default=",".join(AXES), help=f"of {', '.join(AXES)} (default: all)")
    parser.add_argument("--model", default=DEFAULT_MODEL, help="smollm2-135m, a local Hugging Face folder, or a hub id")
    parser.add_argument(
        "--out", metavar="FILE", type=Path, default=RESULTS / "scaling.json", help="default: %(default)s"
    )
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    args = parser.parse_args(argv)
    return guarded(parser.prog, args.debug, lambda: run(args))


def run(args: argparse.Namespace) -> int:
    make_room(args.out)
    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    points = plan(args)
    document: Record = {**describe_run("benchmarks.scaling"), "model": None, "fixed": FIXED, "points": []}
    interrupted = False
    try:
        runner = None if args.quick or args.no_model else load_runner(args.model)
        document["model"] = args.model if runner else None
        for axis, x in points:
            with announce(console)(f"{axis} {x:,}"):
                document["points"] += measure_point(axis, x, runner)
    except KeyboardInterrupt:
        interrupted = True
    if document["points"]:
        write_json(document, str(args.out))
        print_table(Console(highlight=False), document)
        draw(document, args.out.parent.parent / "figures", args.out.stem)
    return FAILED if interrupted else DONE


def plan(args: argparse.Namespace) -> list[tuple[str, int]]:
    axes = [axis.strip() for axis in args.axes.split(",")]
    if unknown := set(axes) - set(AXES):
        raise ValueError(f"--axes {min(unknown)}: there are {', '.join(AXES)}")
    return [(axis, x) for axis in axes for x in (QUICK if args.quick else AXES)[axis]]


def load_runner(model: str) -> Any:
    from minipaged.loading import load_model

    return load_model(EngineConfig(model=model, dtype="float32"))


def measure_point(axis: str, x: int, runner: Any) -> Iterator[Record]:
    """Own cost; and where the model is in it, its forward, too."""
    yield measure(axis, x, None)
    if runner and axis in WITH_MODEL:
        yield measure(axis, x, runner)


def measure(axis: str, x: int, runner: Any) -> Record:
    """Milliseconds of single steps: the whole by the clock on the wall; own cost by this thread's, which counts only
    while it runs."""
    stand_in = StandIn(runner)
    engine = make_engine(stand_in, **{**FIXED, axis: x})
    stand_in.awake = True
    num_steps = STEPS_WITH_MODEL if runner else STEPS
    wall_ms, own_ms = [], []
    for _ in range(WARM_STEPS + num_steps):
        inside, start, own_start = stand_in.inside_s, time.perf_counter(), time.thread_time()
        engine.step()
        own_ms.append(1e3 * (time.thread_time() - own_start - (stand_in.inside_s - inside)))
        wall_ms.append(1e3 * (time.perf_counter() - start))
    kept = {"step_ms": sorted(wall_ms[WARM_STEPS:]), "own_ms": sorted(own_ms[WARM_STEPS:])}
    medians = {name: round(median(found), 4) for name, found in kept.items()}
    tenth = num_steps // 10
    ranges = {f"{name}_range": [round(f[tenth], 4), round(f[-1 - tenth], 4)] for name, f in kept.items()}
    return {"axis": axis, "x": x, "with_model": runner is not None, "steps": num_steps, **medians, **ranges}


def make_engine(model: StandIn, batch: int, context: int, blocks: int, waiting: int, behind: int, said: int) -> Any:
    """Each of `batch` sequences has read its context and decodes; nobody who waits ever gets a seat."""
    left = said + WARM_STEPS + STEPS + 1
    longest = max(context + left, 1 + behind)
    need = batch * (longest // BLOCK_SIZE + 1)
    config = EngineConfig(
        num_blocks=max(blocks, need),
        block_size=BLOCK_SIZE,
        max_num_seqs=batch,
        max_model_len=longest,
        max_num_batched_tokens=max(8192, batch),
        enable_prefix_caching=False,  # all texts are one text
        dtype="float32",
        device="cpu",
        attention_backend="torch",
    )
    engine = load(LEVEL).Engine(config, model)
    params = SamplingParams(temperature=0, max_tokens=left, ignore_eos=True)
    if behind:
        engine.add_request([TOKEN], replace(params, max_tokens=behind))
    while engine.has_unfinished_requests():
        engine.step()
    for i in range(batch + waiting):
        engine.add_request([TOKEN] * (context if i < batch else 1), params)
    while any(seq.num_pending > 1 for seq in engine.scheduler.running) or len(engine.scheduler.running) < batch:
        engine.step()
    for _ in range(said):
        engine.step()
    return engine


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
