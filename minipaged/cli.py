"""Every level runs from the command line by the same rules: its EngineConfig fields are its flags.

    python -m levels.03_continuous_batching --prompt "The capital of France is" --max-tokens 8
    python -m levels.03_continuous_batching --prompts FILE --num-blocks 64 --json -

Exit codes: 0 done, 1 a run failed, 2 bad arguments or input. Invariant: an error is one line on stderr with the flag,
file or number in it; a traceback only with --debug. (From level 01.)"""

import argparse
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NoReturn

from .config import CHOICES, LATER_FIELDS, EngineConfig
from .sampling_params import SamplingParams

DONE, FAILED, REFUSED = 0, 1, 2


class Parser(argparse.ArgumentParser):
    """An error is one line, and a flag of a later level is refused by that level's number."""

    def __init__(self, level: int, **options: Any):
        super().__init__(allow_abbrev=False, **options)
        self.later = {flag(f.name): f.metadata["level"] for f in fields(EngineConfig) if f.metadata["level"] > level}
        self.later |= {flag(name): number for name, number in LATER_FIELDS.items() if number > level}
        self.level = level

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        for word in sys.argv[1:] if args is None else args:
            if number := self.later.get(word.partition("=")[0].replace("--no-", "--", 1)):
                self.error(f"{word.partition('=')[0]} comes with level {number:02}, this is level {self.level:02}")
        return super().parse_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        self.exit(REFUSED, f"{self.prog}: error: {message}\n")


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def make_parser(level: int, name: str, claim: str, defaults: dict[str, Any]) -> Parser:
    """All flags of one level; `defaults` are its demonstration's, used when no prompts are given."""
    parser = Parser(level, prog=f"python -m levels.{name}", description=claim)
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    add_request_flags(parser)
    output = parser.add_argument_group("results")
    output.add_argument("--json", metavar="FILE", help="write the result document; - is stdout, and nothing else is")
    output.add_argument("--trace", metavar="FILE", help="write what every step did")
    engine = parser.add_argument_group("engine", "each an EngineConfig field; the demonstration sets some of its own")
    for f in fields(EngineConfig):
        if f.metadata["level"] <= level:
            add_engine_flag(engine, f, defaults)
    return parser


def add_request_flags(parser: Parser) -> None:
    requests = parser.add_argument_group("requests", "without any, the level's own demonstration runs")
    requests.add_argument("--prompt", metavar="TEXT", action="append", default=[], help="a request; repeatable")
    requests.add_argument("--prompts", metavar="FILE", help="a request a line, each a JSON object")
    sampling = parser.add_argument_group("sampling", "for requests that do not set their own")
    sampling.add_argument("--max-tokens", metavar="N", type=int, default=16, help="tokens to generate (default 16)")
    sampling.add_argument("--temperature", metavar="F", type=float, default=0.0, help="0, the default, is greedy")
    sampling.add_argument("--top-p", metavar="F", type=float, default=1.0, help="1, the default, is off")
    sampling.add_argument("--top-k", metavar="N", type=int, default=0, help="0, the default, is off")
    sampling.add_argument("--ignore-eos", action="store_true", help="do not end at an end-of-sequence token")


def add_engine_flag(group: Any, f: Any, defaults: dict[str, Any]) -> None:
    text = f.metadata["help"] + ("" if f.default in (None, "auto") else f" (default {f.default})")
    text += f"; demonstration: {defaults[f.name]}" if f.name in defaults else ""
    kind = {"gpu_memory_utilization": float}.get(f.name, str if isinstance(f.default, str) else int)
    metavar = None if f.name in CHOICES else {str: "NAME", int: "N", float: "F"}[kind]
    group.add_argument(flag(f.name), type=kind, choices=CHOICES.get(f.name), metavar=metavar, help=text)


def engine_options(args: argparse.Namespace, level: int) -> dict[str, Any]:
    """The EngineConfig fields that were given."""
    names = [f.name for f in fields(EngineConfig) if f.metadata["level"] <= level]
    return {name: value for name in names if (value := getattr(args, name)) is not None}


def default_params(args: argparse.Namespace) -> SamplingParams:
    names = ("max_tokens", "temperature", "top_p", "top_k", "seed", "ignore_eos")
    return SamplingParams(**{name: getattr(args, name) for name in names})


def write_json(document: Any, target: str) -> None:
    """To a file, whole or not at all, or to stdout for "-"."""
    text = json.dumps(document, allow_nan=False) + "\n"
    if target == "-":
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    path = Path(target)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        file.write(text)
    os.replace(file.name, path)


def guarded(prog: str, debug: bool, work: Callable[[], int]) -> int:
    """Run work; say what went wrong in one line. ValueError, TypeError and OSError are the user's (exit code 2)."""
    try:
        return work()
    except KeyboardInterrupt:
        print(f"{prog}: interrupted", file=sys.stderr)
        return FAILED
    except Exception as error:
        if debug:
            traceback.print_exc()
        message = " ".join(str(error).split()) or type(error).__name__
        print(f"{prog}: error: {message}", file=sys.stderr)
        return REFUSED if isinstance(error, ValueError | TypeError | OSError) else FAILED
