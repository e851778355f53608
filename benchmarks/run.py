"""One command measures engines side by side, writes one JSON document and shows a table.

    python -m benchmarks.run                the ladder: all levels, W2 with lengths x 1/4, three times: minutes
    python -m benchmarks.run --full         W1 to W4 at full length, transformers beside the last level: an hour
    python -m benchmarks.run --quick        everything as short as it gets: does it run at all?

    engine = minipaged:LEVEL | transformers:one | transformers:staticN

--full and --quick are only defaults: what is given beside them counts. Ctrl-C (or SIGTERM) writes what there is. Exit
codes: 0 done, 1 a run failed or was interrupted, 2 bad arguments."""

import argparse
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.bench import Bench, Plan
from benchmarks.document import Record
from benchmarks.machine import count_cores, describe_commit, describe_machine, describe_versions, is_busy
from benchmarks.process import ROOT, thread_limits
from benchmarks.report import print_report
from benchmarks.workloads import WORKLOADS
from levels import NAMES
from minipaged.cli import DONE, FAILED, Parser, guarded, write_json
from minipaged.config import DEFAULT_MODEL
from minipaged.models.hub import resolve_model

RESULTS = Path(__file__).parent / "results"
TABLE_WIDTH = 120  # in a file or a pipe, where nobody says how wide it is
LEVELS = f"1-{len(NAMES)}"
PEERS = "transformers:one,transformers:static16"
LADDER = {"workloads": "W2", "engines": "", "levels": LEVELS, "repetitions": 3, "scale": 0.25}
FULL = {"workloads": ",".join(WORKLOADS), "engines": PEERS, "levels": str(len(NAMES)), "repetitions": 3, "scale": 1.0}
QUICK = {"workloads": ",".join(WORKLOADS), "engines": PEERS, "levels": LEVELS, "repetitions": 1, "scale": 1 / 32}


def make_parser() -> Parser:
    parser = Parser(prog="python -m benchmarks.run", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workloads", metavar="W1,W2", help=f"of {', '.join(WORKLOADS)} (default W2)")
    parser.add_argument("--levels", metavar="1-3", help=f"the ladder's, as 3 or 1-3 (default {LEVELS})")
    parser.add_argument("--engines", metavar="A,B", help=f"more engines, named before the levels: {PEERS}, minipaged:3")
    parser.add_argument("--repetitions", metavar="N", type=int, help="of each workload on each engine (default 3)")
    parser.add_argument("--scale", metavar="F", type=float, help="prompts and outputs times F, up to 1 (default 0.25)")
    parser.add_argument("--full", action="store_true", help="all workloads at full length, peers beside the last level")
    parser.add_argument("--quick", action="store_true", help="all workloads and engines, very short, once")
    parser.add_argument("--model", default=DEFAULT_MODEL, help="smollm2-135m, a local Hugging Face folder, or a hub id")
    parser.add_argument("--subset", metavar="N", type=int, default=8, help="requests for one-at-a-time engines")
    parser.add_argument("--threads", metavar="N", type=int, default=count_cores(), help="of each engine (all cores)")
    parser.add_argument("--seed", metavar="N", type=int, default=0, help="another draw of all token ids and lengths")
    parser.add_argument("--out", metavar="FILE", type=Path, help="default: benchmarks/results/DATE-COMMIT.json")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    parser = make_parser()
    args = parser.parse_args(argv)
    return guarded(parser.prog, args.debug, lambda: run(args))


def run(args: argparse.Namespace) -> int:
    plan, console = make_plan(args), Console(stderr=True, highlight=False, markup=False, emoji=False)
    facts = describe_run("benchmarks.run")
    out = args.out or RESULTS / f"{facts['created'].replace(':', '')}-{(facts['commit'] or 'nogit')[:8]}.json"
    make_room(out)
    if is_busy(facts["machine"]):
        console.print(f"this machine is busy (load {facts['machine']['load_before']}): figures will be too low")
    folder = find_folder(plan.model)
    with announce(console)("measuring what the machine can do"):
        limits = measure_limits(folder, plan.threads)
    bench = Bench(plan, folder, limits, busy=announce(console), say=console.print)
    try:
        bench.run()
    finally:
        finish({**facts, **bench.document()}, out, console)
    return FAILED if bench.interrupted else DONE


def find_folder(model: str) -> Path:
    """With weights in it that all engines can read. Raises ValueError if they are in a GGUF file."""
    folder = resolve_model(model).resolve()
    if (folder / "model.gguf.index.json").exists():
        raise ValueError(f"--model {model}: its weights are in a GGUF file, which not all engines here can read")
    return folder


def finish(document: Record, out: Path, console: Console) -> None:
    """Write and show what was measured, if anything was."""
    if not document["repetitions"]:
        console.print("nothing was measured, nothing is written")
        return
    write_json(document, str(out))
    wide = None if sys.stdout.isatty() else TABLE_WIDTH
    print_report(Console(width=wide, highlight=False, markup=False, emoji=False), document)
    console.print(f"written to {out}; a picture of it: python -m benchmarks.plot {out}", soft_wrap=True)


def make_plan(args: argparse.Namespace) -> Plan:
    if args.full and args.quick:
        raise ValueError("--full and --quick: one of the two")
    defaults = FULL if args.full else QUICK if args.quick else LADDER
    chosen: dict[str, Any] = {key: value for key, value in vars(args).items() if key in defaults and value is not None}
    if "engines" in chosen and "levels" not in chosen:
        chosen["levels"] = ""  # whoever names engines means these
    wanted = {**defaults, **chosen}
    return Plan(
        workloads=tuple(split(wanted["workloads"])),
        engines=(*split(wanted["engines"]), *(f"minipaged:{level}" for level in parse_levels(wanted["levels"]))),
        repetitions=wanted["repetitions"],
        scale=wanted["scale"],
        **{name: getattr(args, name) for name in ("model", "subset", "threads", "seed")},
    )


def split(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def parse_levels(text: str) -> list[int]:
    """ "1-3" or "3" or "1,3"."""
    levels: list[int] = []
    for part in split(text):
        if not (found := re.fullmatch(r"(\d+)(?:-(\d+))?", part)):
            raise ValueError(f"--levels {text}: levels are numbers, as in 3 or 1-3")
        levels += range(int(found[1]), int(found[2] or found[1]) + 1)
    return levels


def describe_run(module: str) -> Record:
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["python", "-m", module, *sys.argv[1:]]),
        "machine": describe_machine(),
        "versions": describe_versions(),
        **describe_commit(),
    }


def make_room(out: Path) -> None:
    """An hour's work must have somewhere to go."""
    out.parent.mkdir(parents=True, exist_ok=True)
    if out.is_dir() or not os.access(out.parent, os.W_OK):
        raise ValueError(f"--out {out} cannot be written")


def measure_limits(folder: Path, num_threads: int) -> dict[str, float]:
    """In a process of its own: this one stays free of torch, which would hold threads and memory all along."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.limits", str(folder)],
        cwd=ROOT,
        env={**os.environ, **thread_limits(num_threads)},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"measuring the machine failed with exit code {done.returncode}")
    limits: dict[str, float] = json.loads(done.stdout)
    return limits


def announce(console: Console) -> Callable[[str], Any]:
    """Say what is going on while it goes on: a spinner at a terminal, a line anywhere else."""

    @contextmanager
    def busy(text: str) -> Iterator[None]:
        if console.is_terminal:
            with console.status(text):
                yield
        else:
            console.print(f"{text} ...", soft_wrap=True)
            yield

    return busy


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a time limit, too, leaves what was measured
    sys.exit(main())
