"""One command installs what others made, one measures it beside ours, and a table holds the result against our goals.

    python -m benchmarks.peers install                 vllm, openvino and llamacpp, each in an environment of its own
    python -m benchmarks.peers run                     all of them beside ours, lengths x 1/2, three times
    python -m benchmarks.peers run --engines vllm:float32,openvino:float32 --workloads W2,W4 --scale 1 --out FILE
    python -m benchmarks.peers show FILE               the tables again

Same token ids for all, greedy, exactly as many tokens as asked for; clocks outside; engines alternate within a
repetition, asleep while another one runs (process.py). An --out that is there already is added to: a run that was cut,
or has to be cut, goes on there with repetitions of its own. How long it takes is said as soon as all are warm. Ctrl-C
writes what there is. Exit codes: 0 done, 1 a run failed or was interrupted, 2 bad arguments."""

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from benchmarks.bench import Bench, Plan
from benchmarks.document import Record
from benchmarks.machine import count_cores, is_busy
from benchmarks.process import ROOT, EngineProcess
from benchmarks.run import RESULTS, TABLE_WIDTH, announce, describe_run, find_folder, make_room, measure_limits, split
from benchmarks.workloads import WORKLOADS
from minipaged.cli import DONE, FAILED, Parser, guarded, write_json
from minipaged.config import DEFAULT_MODEL

from . import is_ours, split_name
from .environments import ENVIRONMENTS, FOLDER, converted, find_interpreter, install, peers_folder
from .merge import check_alike, merge, next_repetition, read_pieces
from .table import print_tables

OURS = "minipaged:4,minipaged:4-int8"
ALL = (
    "vllm:float32,openvino:float32,llamacpp:f32-1,llamacpp:q8_0-1,llamacpp:q4_1-1,llamacpp:f32-16,llamacpp:q8_0-16,"
    "transformers:one,transformers:static16,transformers:continuous"
)


def make_parser() -> Parser:
    page = (__doc__ or "").splitlines()
    parser = Parser(
        prog="python -m benchmarks.peers",
        description=page[0],
        epilog="\n".join(page[2:]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="install | run | show")
    installing = commands.add_parser("install", help="make the environments; those that are complete stay")
    add_venvs(installing)
    installing.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(ENVIRONMENTS)} (default: all)")
    showing = commands.add_parser("show", help="the tables of a document")
    showing.add_argument("file", type=Path, metavar="FILE.json")
    add_run_flags(commands.add_parser("run", help="measure"))
    return parser


def add_venvs(parser: argparse.ArgumentParser) -> None:
    text = f"where the environments are (default {peers_folder()}; or ${FOLDER})"
    parser.add_argument("--venvs", metavar="DIR", type=Path, help=text)


def add_run_flags(parser: argparse.ArgumentParser) -> None:
    add_venvs(parser)
    parser.add_argument("--workloads", metavar="W1,W2", default=",".join(WORKLOADS), help="default: all four")
    parser.add_argument("--ours", metavar="A,B", default=OURS, help=f"levels, at their own precision (default {OURS})")
    parser.add_argument("--engines", metavar="A,B", default=ALL, help=f"beside ours (default: {ALL})")
    parser.add_argument("--repetitions", metavar="N", type=int, default=3, help="default 3")
    parser.add_argument("--scale", metavar="F", type=float, default=0.5, help="lengths times F, up to 1 (default 0.5)")
    parser.add_argument("--subset", metavar="N", type=int, default=8, help="requests for one at a time (default 8)")
    part = "requests for transformers' batches and llama.cpp's slots, in W2 and W3 (default 16, which fills them)"
    parser.add_argument("--part", metavar="N", type=int, default=16, help=part)
    parser.add_argument("--model", default=DEFAULT_MODEL, help="smollm2-135m, a local Hugging Face folder, or a hub id")
    parser.add_argument("--threads", metavar="N", type=int, default=count_cores(), help="of each engine (all cores)")
    parser.add_argument("--seed", metavar="N", type=int, default=0, help="another draw of all token ids and lengths")
    parser.add_argument("--out", metavar="FILE", type=Path, help="default: benchmarks/results/peers-DATE-COMMIT.json")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")


def main(argv: Sequence[str] | None = None) -> int:
    parser = make_parser()
    args = parser.parse_args(argv)
    if venvs := getattr(args, "venvs", None):
        os.environ[FOLDER] = str(venvs.expanduser().resolve())
    work = {"install": install_all, "run": run, "show": show}[args.command]
    return guarded(parser.prog, getattr(args, "debug", False), lambda: work(args))


def install_all(args: argparse.Namespace) -> int:
    """One after the other; what could not be installed is said at the end, and the others are there."""
    if unknown := set(args.names) - set(ENVIRONMENTS):
        raise ValueError(f"{min(unknown)!r} is none of {', '.join(ENVIRONMENTS)}")
    failed = []
    for family in args.names or ENVIRONMENTS:
        try:
            install(family, lambda text: print(text, flush=True))
        except RuntimeError as error:
            failed.append(f"{family}: {error}")
    for line in failed:
        print(f"could not be installed: {line}", file=sys.stderr)
    return FAILED if failed else DONE


def show(args: argparse.Namespace) -> int:
    print_tables(results_console(), read_pieces(args.file))
    return DONE


def results_console() -> Console:
    return Console(width=None if sys.stdout.isatty() else TABLE_WIDTH, highlight=False, markup=False, emoji=False)


def run(args: argparse.Namespace) -> int:
    console, facts = Console(stderr=True, highlight=False, markup=False, emoji=False), describe_run("benchmarks.peers")
    out = args.out or RESULTS / f"peers-{facts['created'].replace(':', '')}-{(facts['commit'] or 'nogit')[:8]}.json"
    make_room(out)
    before = read_pieces(out) if out.exists() else None
    plan = make_plan(args, next_repetition(before))
    check_alike(before, vars(plan))
    interpreters = {name: find_interpreter(split_name(name)[0]) for name in plan.engines}
    if is_busy(facts["machine"]):
        console.print(f"this machine is busy (load {facts['machine']['load_before']}): trust ratios, not figures")
    folder = find_folder(plan.model)
    for name in plan.engines:
        with announce(console)(f"{name}: the model in its format"):
            prepare(name, folder)
    with announce(console)("measuring what the machine can do"):
        limits = measure_limits(folder, plan.threads)

    def start(name: str, folder: Path, num_threads: int) -> EngineProcess:
        return EngineProcess(name, folder, num_threads, interpreters[name])

    bench = Bench(plan, folder, limits, start, announce(console), console.print)
    try:
        bench.run()
    finally:
        finish(before, {**facts, **bench.document()}, out, console)
    return FAILED if bench.interrupted else DONE


def finish(before: Record | None, document: Record, out: Path, console: Console) -> None:
    """Write and show what was measured, with what was there before, if anything was measured."""
    if not document["repetitions"]:
        console.print("nothing was measured, nothing is written")
        return
    whole = merge(before, document)
    write_json(whole, str(out))
    print_tables(results_console(), whole)
    console.print(f"written to {out}; a picture of it: python -m benchmarks.plot {out}", soft_wrap=True)


def make_plan(args: argparse.Namespace, first: int) -> Plan:
    ours = split(args.ours)
    if strangers := [name for name in ours if not is_ours(name)]:
        raise ValueError(f"--ours {strangers[0]} is none of ours")
    names = ("repetitions", "scale", "model", "subset", "threads", "seed", "part")
    wanted = {name: getattr(args, name) for name in names}
    return Plan(tuple(split(args.workloads)), (*ours, *split(args.engines)), first=first, **wanted)


def prepare(name: str, folder: Path) -> None:
    """What a family reads that is not a folder of safetensors. Raises RuntimeError if it cannot be made."""
    family, variant = split_name(name)
    kind = variant.partition("-")[0] if family == "llamacpp" else "f16" if family == "openvino" else None
    if kind is None or converted(folder, f"{kind}.gguf").exists():
        return
    command = [sys.executable, "-m", "benchmarks.peers.gguf_files", str(folder), kind]
    if code := subprocess.run(command, cwd=ROOT, check=False).returncode:
        raise RuntimeError(f"{name}: the model could not be written as GGUF, exit code {code}")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a time limit, too, leaves what was measured
    sys.exit(main())
