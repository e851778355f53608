"""Every level on one workload, in one table and one picture.

    python -m levels compare --levels 1-3 --plot compare.png

The workload is twelve people who ask about texts of different lengths and want answers of different lengths, one of
them a long one, in the memory of four rows of 1,024 slots: enough of everything that each level has something to gain.
Invariant: same weights, same requests, same memory for all."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from levels import NAMES, load
from levels.lesson import check_writable
from levels.texts import ask
from minipaged.cli import DONE, FAILED, write_json
from minipaged.config import DEFAULT_MODEL, EngineConfig
from minipaged.display import watch
from minipaged.driver import Run
from minipaged.plot import check_plot, plot
from minipaged.prompts import make_request
from minipaged.report import Outcome, make_table
from minipaged.results import make_document
from minipaged.sampling_params import SamplingParams

CONFIG: dict[str, Any] = {"max_model_len": 1024, "num_blocks": 256}
LENGTHS = [160, 20, 12, 36, 16, 28, 40, 24, 32, 14, 48, 8]
REQUESTS = [{"messages": ask(i, 40 + 12 * (i * 5 % 12)), "max_tokens": n} for i, n in enumerate(LENGTHS)]
GREEDY = SamplingParams(temperature=0, ignore_eos=True)


def add_compare_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--levels", metavar="A-B", default=f"1-{len(NAMES)}", help="which levels (default: all)")
    parser.add_argument("--model", metavar="NAME", default=DEFAULT_MODEL, help="folder, hub id, or the default model")
    parser.add_argument("--plot", metavar="FILE", help="draw the table as a PNG, PDF or SVG")
    parser.add_argument("--json", metavar="FILE", help="write all result documents; - is stdout, and nothing else is")


def compare(args: Any) -> int:
    """Carry out `python -m levels compare`; returns the exit code."""
    numbers = parse_levels(args.levels)
    for target in filter(None, (args.plot, args.json)):
        check_writable(target)
    if args.plot:
        check_plot(Path(args.plot))
    console = Console(stderr=args.json == "-", highlight=False)
    outcomes, interrupted = measure(numbers, args.model, console)
    console.print(make_table("twelve requests, one of them long, in 4,096 slots", outcomes))
    if args.json:
        write_json({"runs": [outcome.document for outcome in outcomes]}, args.json)
    if args.plot:
        plot(outcomes, Path(args.plot))
        console.print(f"drawn: {args.plot}")
    return FAILED if interrupted else DONE


def parse_levels(text: str) -> list[int]:
    """ "1-3" -> [1, 2, 3]; "2" -> [2]. Raises ValueError for anything else."""
    first, _, last = text.partition("-")
    if not first.isdigit() or not (last or first).isdigit():
        raise ValueError(f"--levels must be like 1-3 or 2, not {text!r}")
    numbers = list(range(int(first), int(last or first) + 1))
    if not numbers or not 1 <= numbers[0] <= numbers[-1] <= len(NAMES):
        raise ValueError(f"--levels {text}: there are levels 1 to {len(NAMES)}")
    return numbers


def measure(numbers: Sequence[int], model_name: str, console: Console) -> tuple[list[Outcome], bool]:
    from minipaged.runner import load_model  # late: refusals need no torch

    config = EngineConfig(model=model_name, **CONFIG)
    model, outcomes = load_model(config), []
    requests = [make_request(wanted, GREEDY, model.tokenizer) for wanted in REQUESTS]
    for number in numbers:
        name = NAMES[number - 1]
        engine = load(number).Engine(config, model)
        with watch(console, f"{name} on {model_name}") as on_step:
            run = Run(engine, requests, numbered=True).go(on_step)
        outcomes.append(Outcome(make_document(run, name), engine.trace.document()))
        if run.interrupted:
            return outcomes, True
    return outcomes, False
