"""Every level on one workload, in one table and one picture.

    python -m levels compare --levels 1-3 --plot compare.png

The workload is twelve people who ask about texts of different lengths and want answers of different lengths, one of
them a long one, in the memory of four rows of 1,024 slots: enough of everything that each level has something to gain.
Invariant: same weights, same requests, same memory for all."""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from levels import NAMES, load
from levels.lesson import Located, check, load_model, results_console, run_level, tokenize, verdict
from levels.texts import ask
from minipaged.cli import check_targets, write_json
from minipaged.config import DEFAULT_MODEL, EngineConfig
from minipaged.plot import check_plot, plot
from minipaged.prompts import parse
from minipaged.report import Outcome, make_table
from minipaged.sampling_params import SamplingParams

CONFIG: dict[str, Any] = {"max_model_len": 1024, "num_blocks": 256}
FROM_LEVEL: dict[int, dict[str, Any]] = {5: {"num_speculative_tokens": 4}}  # what is off unless asked for
LENGTHS = [160, 20, 12, 36, 16, 28, 40, 24, 32, 14, 48, 8]
REQUESTS = [{"messages": ask(i, 40 + 12 * (i * 5 % 12)), "max_tokens": n} for i, n in enumerate(LENGTHS)]
GREEDY = SamplingParams(temperature=0, ignore_eos=True)


def add_compare_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--levels", metavar="A-B", default=f"1-{len(NAMES)}", help="which levels (default: all)")
    model = "a local Hugging Face folder, a hub id, or the default model (default %(default)s)"
    parser.add_argument("--model", metavar="NAME", default=DEFAULT_MODEL, help=model)
    parser.add_argument("--plot", metavar="FILE", help="draw the table as a PNG, PDF or SVG")
    parser.add_argument("--json", metavar="FILE", help="write all result documents; - is stdout, and nothing else is")


def compare(args: Any) -> int:
    """Carry out `python -m levels compare`; returns the exit code."""
    numbers = parse_levels(args.levels)
    if args.plot is not None:
        check_plot(args.plot)
    check_targets(plot=args.plot, json=args.json)
    outcomes = measure(numbers, args.model)
    if args.json is not None:
        write_json({"runs": [outcome.document for outcome in outcomes]}, args.json)
    if args.plot is not None:
        plot(outcomes, Path(args.plot))
    if args.json != "-":
        results_console().print(make_table("twelve requests, one of them long, in 4,096 slots", outcomes))
    return verdict("python -m levels", outcomes)


def parse_levels(text: str) -> list[int]:
    """ "1-3" -> [1, 2, 3]; "2" -> [2]. Raises ValueError for anything else."""
    first, dash, last = text.partition("-")
    if not first.isdecimal() or not (last.isdecimal() if dash else True):
        raise ValueError(f"--levels must be like 1-3 or 2, not {text!r}")
    numbers = list(range(int(first), int(last or first) + 1))
    if not numbers or not 1 <= numbers[0] <= numbers[-1] <= len(NAMES):
        raise ValueError(f"--levels {text}: there are levels 1 to {len(NAMES)}")
    return numbers


def measure(numbers: Sequence[int], model_name: str) -> list[Outcome]:
    """An outcome for each level, up to the one that was interrupted."""
    config = EngineConfig(model=model_name, **CONFIG)
    asked: Located = [(f"request {i}", parse(wanted, GREEDY)) for i, wanted in enumerate(REQUESTS)]
    model = load_model(config)
    requests, outcomes = tokenize(asked, model.vocabulary), []
    for number in numbers:
        newer = {name: value for since in FROM_LEVEL if since <= number for name, value in FROM_LEVEL[since].items()}
        engine = load(number).Engine(replace(config, **newer), model)
        check(engine, asked, requests)
        outcomes.append(run_level(number, engine, requests))
        if outcomes[-1].interrupted:
            break
    return outcomes
