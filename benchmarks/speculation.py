"""How far to guess ahead: fixed lengths and the one that adapts, on text to copy and on new text.

    python -m benchmarks.speculation [--lengths 1,2,3,5,8] [--repetitions 3] [--out FILE] [--quick]

Level 04, then level 05 with the n-gram drafter at each fixed length, then with lengths that adapt up to the largest;
the requests are those of level 05's lesson, greedy. All run in this process on one loaded model, in turns, and a
speed-up is taken within one repetition. Expected: on text to copy long guesses win, on new text short ones lose least,
and the adaptive length comes near the better of the two without being told. Tokens must be equal, or it is an error.
One JSON document with the machine, the versions, the commit and every repetition."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.machine import describe_commit, describe_machine, describe_versions
from levels import NAMES, load
from minipaged.cli import DONE, Parser, check_targets, guarded, write_json
from minipaged.config import DEFAULT_MODEL, EngineConfig
from minipaged.driver import Request, Run
from minipaged.prompts import parse
from minipaged.results import make_document
from minipaged.sampling_params import SamplingParams

GREEDY = SamplingParams(temperature=0)
Record = dict[str, Any]


def make_parser() -> Parser:
    parser = Parser(prog="python -m benchmarks.speculation", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--lengths", metavar="A,B", default="1,2,3,5,8", help="fixed lengths (default %(default)s)")
    parser.add_argument("--repetitions", metavar="N", type=int, default=3, help="of each (default %(default)s)")
    parser.add_argument("--model", metavar="NAME", default=DEFAULT_MODEL, help="(default %(default)s)")
    parser.add_argument("--quick", action="store_true", help="very short, once: does it run at all?")
    parser.add_argument("--out", metavar="FILE", help="write the JSON document there")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    parser = make_parser()
    args = parser.parse_args(argv)
    return guarded(parser.prog, args.debug, lambda: run(args))


def run(args: argparse.Namespace) -> int:
    from minipaged.loading import load_model  # late: --help needs no torch

    check_targets(out=args.out)
    engines = list_engines([int(text) for text in args.lengths.split(",")], load(5, "demo").CONFIG)
    facts = {"machine": describe_machine(), "versions": describe_versions(), **describe_commit()}
    model = load_model(EngineConfig(model=args.model))
    workloads = make_workloads(model.vocabulary.tokenizer, 8 if args.quick else None)
    records = []
    for repetition in range(1 if args.quick else args.repetitions):
        for workload, requests in workloads.items():
            turn = [measure(name, config, model, requests) for name, config in engines.items()]
            check_equal(workload, turn)
            records += [{"workload": workload, "repetition": repetition, **record} for record in turn]
            print(f"{workload}, repetition {repetition + 1}: done", file=sys.stderr)
    if args.out:
        strip = [{name: value for name, value in record.items() if name != "token_ids"} for record in records]
        write_json({**facts, "model": args.model, "records": strip}, args.out)
    Console(highlight=False).print(make_table(records, list(engines)))
    return DONE


def list_engines(lengths: list[int], settings: Record) -> dict[str, EngineConfig]:
    plain = EngineConfig(**{**settings, "num_speculative_tokens": 0})
    fixed = {f"fixed {k}": replace(plain, num_speculative_tokens=k) for k in lengths}
    adaptive = replace(plain, num_speculative_tokens=max(lengths), speculative_length="adaptive")
    return {"level 04": plain, **fixed, f"adaptive up to {max(lengths)}": adaptive}


def make_workloads(tokenizer: Any, max_tokens: int | None) -> dict[str, list[Request]]:
    demo = load(5, "demo")
    asked = {"text to copy": demo.REQUESTS, "new text": demo.NEW_TEXT}
    limit = {} if max_tokens is None else {"max_tokens": max_tokens}
    return {
        name: [parse({**wish, **limit}, GREEDY).tokenize(tokenizer) for wish in wishes]
        for name, wishes in asked.items()
    }


def measure(name: str, config: EngineConfig, model: Any, requests: list[Request]) -> Record:
    level = 5 if config.num_speculative_tokens else 4
    finished = Run(load(level).Engine(config, model), requests, numbered=True).go()
    if finished.interrupted:
        raise KeyboardInterrupt
    document = make_document(finished, NAMES[level - 1])
    wanted = ("wall_s", "model_s", "steps", "output_tokens", "output_tokens_per_s", "draft_tokens", "accepted_tokens")
    return {
        "engine": name,
        **{key: document["metrics"][key] for key in wanted},
        "tokens_per_forward": document["metrics"]["tokens_per_forward"],
        "token_ids": [request["token_ids"] for request in document["requests"]],
    }


def check_equal(workload: str, turn: list[Record]) -> None:
    if wrong := [record["engine"] for record in turn if record["token_ids"] != turn[0]["token_ids"]]:
        raise RuntimeError(f"{workload}: other tokens than {turn[0]['engine']}'s from {', '.join(wrong)}")


def make_table(records: list[Record], engines: list[str]) -> Table:
    table = Table(title="speed beside level 04: median of the repetitions (from - to); tokens per forward")
    table.add_column("")
    workloads = list(dict.fromkeys(record["workload"] for record in records))
    for workload in workloads:
        table.add_column(workload, justify="right")
    for engine in engines:
        table.add_row(engine, *(describe(records, workload, engine) for workload in workloads))
    return table


def describe(records: list[Record], workload: str, engine: str) -> str:
    mine = [r for r in records if (r["workload"], r["engine"]) == (workload, engine)]
    base = {r["repetition"]: r["wall_s"] for r in records if (r["workload"], r["engine"]) == (workload, "level 04")}
    ratios = [base[record["repetition"]] / record["wall_s"] for record in mine]
    forward = mine[0]["tokens_per_forward"]
    return f"{median(ratios):.2f} ({min(ratios):.2f} - {max(ratios):.2f}); {1 if forward is None else forward:.2f}"


if __name__ == "__main__":
    sys.exit(main())
