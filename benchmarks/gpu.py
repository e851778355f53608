"""Everything that only a GPU can say, by one command, in minutes: no network, no checkpoint.

    python -m benchmarks.gpu --out DIR [--dry-run] [--only kernels,step]

    tests      what the tests say on the card: kernels against their specifications,
               levels through Triton, recorded steps                                       benchmarks/gpu_tests.py
    compiled   what the compiler made of the kernels for the target nearest to this card: registers, stack
    kernels    each kernel's share of bandwidth and matrix rate, beside torch's own        benchmarks/kernels.py
    step       a decode step of 8 billion parameters against its floor                     benchmarks/gpu_step.py
    ladder     the levels' throughput on two shapes, and transformers'                     benchmarks/gpu_ladder.py

Each part is a process of its own with a time limit: one that fails or hangs is said so, nothing that it started is left
to disturb the others, and those are measured. DIR gets a JSON file and a log of each, and gpu.json with all of it, the
card, the versions and the commit; a short table comes last, after Ctrl-C too (or SIGTERM, or a terminal that goes), of
what there is by then. Exit codes: 0 all parts ran, 1 one did not, 130 interrupted. --dry-run runs all of it on a CPU,
tiny and interpreted: every line but the timing, and no claim."""

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from benchmarks.machine import ROOT, describe_commit, describe_machine, describe_versions, find_version

Json = dict[str, Any]
PARTS = ("tests", "compiled", "kernels", "step", "ladder")
# from which compute capability on: the nearest target that is not newer, which on a card of 12.0 uses tcgen05 in vain
TARGETS = {(10, 0): "sm_100", (9, 0): "sm_90", (0, 0): "sm_80"}
GRACE_S = 5.0  # for a part to say where it was, and to leave nothing behind
INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class Part:
    """command: without the interpreter. path: the JSON file that it writes."""

    name: str
    command: list[str]
    limit_s: float
    path: Path


@dataclass(frozen=True)
class Outcome:
    name: str
    seconds: float
    error: str | None
    document: Any


def plan(out: Path, target: str, dry: bool) -> list[Part]:
    """The time limits add up to eight minutes; a dry run has ten times as long."""
    dry_run = ["--dry-run"] if dry else []
    limits = {"tests": 90, "compiled": 40, "kernels": 90, "step": 50, "ladder": 210}
    paths = {name: out / f"{name}.json" for name in PARTS}
    commands = {
        "tests": ["benchmarks.gpu_tests", "--seconds", "80", "--out", str(paths["tests"]), *dry_run],
        "compiled": ["benchmarks.compile_kernels", "--few", "--targets", target, "--json", str(paths["compiled"])],
        "kernels": ["benchmarks.kernels", "--json", str(paths["kernels"])],
        "step": ["benchmarks.gpu_step", "--out", str(paths["step"]), *dry_run],
        "ladder": ["benchmarks.gpu_ladder", "--out", str(paths["ladder"]), *dry_run],
    }
    slow = 10 if dry else 1
    return [Part(name, ["-m", *commands[name]], slow * limits[name], paths[name]) for name in PARTS]


def carry_out(part: Part, out: Path, dry: bool) -> Outcome:
    """Run it, its words in DIR/NAME.log. What it wrote before it failed is kept, but nothing of an earlier run."""
    print(f"{part.name}: at most {part.limit_s:.0f} s ...", flush=True)
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"CUDA_VISIBLE_DEVICES": ""} if dry else {}
    part.path.unlink(missing_ok=True)
    start, error = time.perf_counter(), None
    with (out / f"{part.name}.log").open("w") as log:
        try:
            code = run_group([sys.executable, *part.command], environment, log, part.limit_s)
            error = f"exit code {code}, see {part.name}.log" if code else None
        except subprocess.TimeoutExpired:
            error = f"not done after {part.limit_s:.0f} s, see {part.name}.log"
        except KeyboardInterrupt:
            error = INTERRUPTED
    return Outcome(part.name, time.perf_counter() - start, error, read_document(part.path))


def run_group(command: list[str], environment: dict[str, str], log: IO[str], limit_s: float) -> int:
    """The exit code. Whatever the command started and left is ended with it."""
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
    )
    try:
        return process.wait(limit_s)
    finally:
        try:
            end(process, signal.SIGINT)
        finally:  # whoever presses Ctrl-C twice waits no longer, but nothing is left running either
            end(process, signal.SIGKILL)


def end(process: subprocess.Popen[bytes], number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)
    with suppress(subprocess.TimeoutExpired):
        process.wait(GRACE_S)


def read_document(path: Path) -> Any:
    """None, if there is none, or half of one."""
    with suppress(FileNotFoundError, json.JSONDecodeError):
        return json.loads(path.read_text())
    return None


def find_card(dry: bool) -> tuple[str, str]:
    """Its name, and the target that kernels are compiled for. Raises ValueError if there is none."""
    import torch

    if dry:
        return "CPU, interpreted: no claim about any GPU", "sm_90"
    if not torch.cuda.is_available():
        raise ValueError("there is no GPU here (--dry-run needs none)")
    capability = torch.cuda.get_device_capability()
    target = "gfx942" if torch.version.hip else next(TARGETS[least] for least in TARGETS if capability >= least)
    return torch.cuda.get_device_name(), target


def summarize(outcomes: list[Outcome]) -> Iterator[str]:
    """The short table."""
    tellers = {"tests": tell_tests, "compiled": tell_compiled, "kernels": tell_kernels, "step": tell_step}
    for outcome in outcomes:
        yield f"{outcome.name:<10} {outcome.seconds:6.1f} s  {outcome.error or 'done'}"
        if outcome.document is not None:
            yield from (f"    {line}" for line in {**tellers, "ladder": tell_ladder}[outcome.name](outcome.document))


def tell_tests(found: Json) -> Iterator[str]:
    wrong = found["failures"] + found["errors"]
    yield f"{found['tests']} tests, {wrong} failed, {found['skipped']} skipped"
    yield from found["failed"]
    yield from (f"not done in time: {name}" for name in found["unfinished"])


def tell_compiled(rows: list[Json]) -> Iterator[str]:
    spilling = [f"{row['kernel']} ({row['shape']})" for row in rows if row["stack"]]
    yield f"{len(rows)} kernels compiled for {rows[0]['target']}, {len(spilling)} need a stack"
    yield from spilling


def tell_kernels(found: Json) -> Iterator[str]:
    """Ours, and how many times the time of torch's own it took."""
    rates, times = found["rates"], {(f["kernel"], f["shape"], f["way"]): f["ms"] for f in found["figures"]}
    yield f"copies {rates['copy_gb_s']:.0f} GB/s, products {rates['product_tflop_s']:.1f} TFLOP/s"
    for figure in found["figures"]:
        if figure["way"] != "triton":
            continue
        kernel, shape, ms = figure["kernel"], figure["shape"], figure["ms"]
        shares = (
            f"{figure['share_of_bandwidth']:7.1%} of bandwidth {figure['share_of_matrix_rate']:7.1%} of matrix rate"
        )
        others = {way: times.get((kernel, shape, way)) for way in ("torch", "flex")}
        beside = ", ".join(f"{way} {other / ms:.2f} x as long" for way, other in others.items() if other)
        yield f"{kernel:<16} {shape:<22} {ms:9.3f} ms {shares}  {beside}"


def tell_step(found: Json) -> Iterator[str]:
    for f in found["figures"]:
        name = f"{f['num_seqs']} x {f['context']}, {f['way']}, kv {f['kept']}"
        share = f"{f['share']:6.1%} of the floor's rate, host {f['host_share']:5.1%}"
        yield f"{name:<34} {f['device_ms']:8.3f} ms of {f['step_ms']:8.3f}: {share}"


def tell_ladder(found: Json) -> Iterator[str]:
    for shape, records in found.items():
        for r in records:
            rate = r["error"] or f"{r['output_tokens_per_s']:>10.1f} output tokens/s"
            yield f"{shape:<8} {r['engine']:<32} {rate}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="a folder for the documents, made if it is not there")
    parser.add_argument("--dry-run", action="store_true", help="tiny, on a CPU: does every line run?")
    parser.add_argument("--only", default=",".join(PARTS), help=f"of {', '.join(PARTS)} (default: all)")
    args = parser.parse_args(argv)
    wanted = [name.strip() for name in args.only.split(",")]
    if unknown := [name for name in wanted if name not in PARTS]:
        parser.error(f"--only {', '.join(unknown)}: there are {', '.join(PARTS)}")
    try:
        card, target = find_card(args.dry_run)
    except ValueError as error:
        parser.error(str(error))
    args.out.mkdir(parents=True, exist_ok=True)
    parts = [part for part in plan(args.out.resolve(), target, args.dry_run) if part.name in wanted]
    outcomes: list[Outcome] = []
    for part in parts:
        outcomes.append(carry_out(part, args.out, args.dry_run))
        (args.out / "gpu.json").write_text(json.dumps(describe(card, outcomes), indent=1))
        if outcomes[-1].error == INTERRUPTED:
            break
    print(f"\n{card}")
    print("\n".join(summarize(outcomes)))
    return 130 if outcomes[-1].error == INTERRUPTED else int(any(outcome.error for outcome in outcomes))


def describe(card: str, outcomes: list[Outcome]) -> Json:
    return {
        "device": card,
        "command": shlex.join(["python", "-m", "benchmarks.gpu", *sys.argv[1:]]),
        "machine": describe_machine(),
        "versions": describe_versions() | {"triton": find_version("triton")},
        **describe_commit(),
        "parts": {o.name: {"seconds": o.seconds, "error": o.error, "document": o.document} for o in outcomes},
    }


if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGHUP):  # a time limit, too, leaves what was measured and nothing running
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup stays what it is
            signal.signal(number, signal.default_int_handler)
    sys.exit(main())
