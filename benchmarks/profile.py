"""Where the time of a workload goes on a level, kind of work by kind of work, over what it must take at least.

    python -m benchmarks.profile                          W1 and W2 on level 04, lengths x 1/2: a minute or two
    python -m benchmarks.profile --workloads W4 --level 3 --scale 1

One engine in this process, warmed up, profiled as `--profile` does (minipaged/profile.py); floors are those of the
steps that it did make (floors.py), by limits measured just before. Writes benchmarks/results/profile.json and a picture
of each workload, drawn from it. On a GPU floors are left out: limits.py measures a CPU. Expected: products are most of
it, and close to their floor where many rows share the weights; what no part accounts for is small."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.document import Record
from benchmarks.floors import find_part_floors
from benchmarks.machine import count_cores
from benchmarks.peers.minipaged_peer import MAX_MODEL_LEN, make_params
from benchmarks.profile_plot import draw
from benchmarks.run import RESULTS, announce, describe_run, make_room, measure_limits, split
from benchmarks.workloads import WORKLOADS, make_requests
from levels import load
from minipaged.cli import DONE, Parser, guarded, write_json
from minipaged.config import DEFAULT_MODEL, EngineConfig
from minipaged.models.config import read_model_config
from minipaged.models.hub import resolve_model

WARM_UP_SCALE = 1 / 16


def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(prog="python -m benchmarks.profile", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workloads", metavar="W1,W2", default="W1,W2", help="default: %(default)s")
    parser.add_argument("--level", metavar="N", type=int, default=4, help="default: %(default)s")
    parser.add_argument("--scale", metavar="F", type=float, default=0.5, help="lengths times F (default 0.5)")
    parser.add_argument("--model", default=DEFAULT_MODEL, help="smollm2-135m, a local Hugging Face folder, or a hub id")
    parser.add_argument(
        "--out", metavar="FILE", type=Path, default=RESULTS / "profile.json", help="default: %(default)s"
    )
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    args = parser.parse_args(argv)
    return guarded(parser.prog, args.debug, lambda: run(args))


def run(args: argparse.Namespace) -> int:
    make_room(args.out)
    workloads = split(args.workloads)
    if unknown := set(workloads) - set(WORKLOADS):
        raise ValueError(f"--workloads {min(unknown)}: there are {', '.join(WORKLOADS)}")
    busy = announce(Console(stderr=True, highlight=False, markup=False, emoji=False))
    facts, folder = describe_run("benchmarks.profile"), resolve_model(args.model).resolve()
    with busy("measuring what the machine can do"):
        limits = measure_limits(folder, count_cores())
    document: Record = {**facts, "model": args.model, "level": args.level, "scale": args.scale, "limits": limits}
    document["workloads"] = {}
    for name in workloads:
        with busy(f"{name} on level {args.level}"):
            document["workloads"][name] = measure(name, args, folder, limits)
    write_json(document, str(args.out))
    draw(document, args.out.parent.parent / "figures", args.out.stem)
    return DONE


def measure(workload: str, args: argparse.Namespace, folder: Path, limits: Record) -> Record:
    """One run of one workload on an engine of its own: a profile is of one engine, from its beginning."""
    from minipaged.driver import Request, Run
    from minipaged.profile import Profile

    model = read_model_config(folder)
    length = min(MAX_MODEL_LEN, model.max_position_embeddings)
    engine: Any = load(args.level).Engine(EngineConfig(model=str(folder), max_model_len=length))

    def run(repetition: str, scale: float) -> Run:
        asked = make_requests(workload, model.vocab_size, repetition, scale=scale)
        return Run(engine, [Request(one.prompt_token_ids, make_params(one)) for one in asked]).go()

    run("warm-up", min(WARM_UP_SCALE, args.scale))
    profile = Profile(engine)
    done = run("profile", args.scale)
    steps = [step.num_scheduled_tokens for step in engine.trace.steps[done.first_step :]]
    prompts = {str(record.request_id): len(record.request.prompt_token_ids) for record in done.records}
    on_cpu = engine.config.device == "cpu"
    return {
        "wall_s": done.wall_s,
        "steps": done.num_steps,
        "spent_s": {line.name: line.seconds for line in profile.lines(done.wall_s)},
        "floors_s": find_part_floors(model, steps, prompts, limits) if on_cpu else {},
        "stopwatches": profile.cost_s / done.wall_s,
    }


if __name__ == "__main__":
    sys.exit(main())
