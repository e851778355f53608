"""A lesson is one workload on two levels: the one below shows the problem, this one the answer.

    python -m levels.03_continuous_batching                 level 02, then level 03, then the table
    python -m levels.03_continuous_batching --prompts FILE  your own requests, on level 03 alone

Invariant: both levels run the same requests with the same settings on the same weights; with prompts of your own, or
with --json -, nothing else runs."""

import ast
import os
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from levels import NAMES, load
from minipaged.cli import DONE, FAILED, default_params, engine_options, guarded, make_parser, write_json
from minipaged.config import EngineConfig
from minipaged.display import watch
from minipaged.driver import Request, Run
from minipaged.prompts import make_request, read_lines
from minipaged.report import Outcome, make_table
from minipaged.results import make_document

T = TypeVar("T")
Lines = list[tuple[str, dict[str, Any]]]  # where a request comes from, for errors; and what it says


def main(number: int, argv: Sequence[str] | None = None) -> int:
    """Run level `number` by its command line; returns the exit code."""
    demo = load(number, "demo")
    parser = make_parser(number, NAMES[number - 1], claim(number), demo.CONFIG)
    args = parser.parse_args(argv)
    return guarded(parser.prog, args.debug, lambda: Lesson(number, args, demo).run())


def claim(number: int, part: str = "engine") -> str:
    """The first line of a level's engine.py (or __init__.py, its question), read without importing it."""
    source = Path(__file__).parent / NAMES[number - 1] / f"{part}.py"
    return (ast.get_docstring(ast.parse(source.read_text())) or "").splitlines()[0]


class Lesson:
    """One command line, carried out."""

    def __init__(self, number: int, args: Namespace, demo: Any):
        self.number, self.args, self.demo = number, args, demo
        self.is_demo = not (args.prompt or args.prompts)
        self.console = Console(stderr=args.json == "-" or args.trace == "-", highlight=False)
        self.params = default_params(args)
        settings = demo.CONFIG if self.is_demo else {}
        self.config = EngineConfig(**{**settings, **engine_options(args, number)})

    def run(self) -> int:
        for target in filter(None, (self.args.json, self.args.trace)):
            check_writable(target)
        lines = self.read()
        self.model = self.load()
        requests = [self.make_request(where, wanted) for where, wanted in lines]
        engine = self.compose(self.number, self.config)
        for (where, _), request in zip(lines, requests, strict=True):
            located(where, lambda request=request: engine.desk.check(request.prompt_token_ids, request.params))
        below = self.run_below(requests)
        run, outcome = self.measure(engine, self.number, requests)
        self.write(outcome)
        self.show(run, [*below, outcome])
        return FAILED if run.interrupted or any(r["error"] for r in outcome.document["requests"]) else DONE

    def read(self) -> Lines:
        """The requests as they were asked for, still as text."""
        if self.is_demo:
            return [(f"demonstration, request {i}", wanted) for i, wanted in enumerate(self.demo.REQUESTS)]
        path = self.args.prompts
        in_file = [(f"{path}, line {i}", wanted) for i, wanted in read_lines(Path(path))] if path else []
        return [(f"--prompt {text[:40]!r}", {"prompt": text}) for text in self.args.prompt] + in_file

    def load(self) -> Any:
        from minipaged.runner import load_model  # late: --help and refusals need no torch

        busy = self.console.status(f"loading {self.config.model}") if self.console.is_terminal else nullcontext()
        with busy:
            return load_model(self.config)

    def make_request(self, where: str, wanted: dict[str, Any]) -> Request:
        return located(where, lambda: make_request(wanted, self.params, self.model.tokenizer))

    def compose(self, number: int, config: EngineConfig) -> Any:
        return load(number).Engine(config, self.model)

    def run_below(self, requests: list[Request]) -> list[Outcome]:
        """The demonstration on the level below; what that level does not have yet is left at its default."""
        number = self.number - 1
        if not self.is_demo or number < 1 or self.args.json == "-":
            return []
        newer: dict[str, Any] = {f.name: f.default for f in fields(EngineConfig) if f.metadata["level"] > number}
        engine = self.compose(number, replace(self.config, **newer))
        return [self.measure(engine, number, requests)[1]]

    def measure(self, engine: Any, number: int, requests: list[Request]) -> tuple[Run, Outcome]:
        name = NAMES[number - 1]
        with watch(self.console, f"{name} on {self.config.model}") as on_step:
            try:
                run = Run(engine, requests, numbered=True).go(on_step)
            except (ValueError, TypeError, OSError) as error:
                raise RuntimeError(f"the run failed: {error}") from error
        return run, Outcome(make_document(run, name), engine.trace.document())

    def write(self, outcome: Outcome) -> None:
        if self.args.json:
            write_json(outcome.document, self.args.json)
        if self.args.trace:
            write_json(outcome.trace, self.args.trace)

    def show(self, run: Run, outcomes: list[Outcome]) -> None:
        """The answers, then the table; an interrupted or failed run says so."""
        for request in outcomes[-1].document["requests"][: 3 if self.is_demo else None]:
            self.console.print(f"[bold]{request['index']:>3}[/]  ", end="")
            self.console.print(request["text"] or str(request["token_ids"]), markup=False, end=" ")
            self.console.print(f"[dim]({request['error'] or request['finish_reason']})[/]\n")
        title = " ".join((self.demo.__doc__ or "").split()) if self.is_demo else "what it cost"
        self.console.print(make_table(title, outcomes, self.demo.LOOK_AT if self.is_demo else ()))
        if run.interrupted:
            print("interrupted: what is above is what there was", file=sys.stderr)


def located(where: str, work: Callable[[], T]) -> T:
    """Say where a refused request comes from."""
    try:
        return work()
    except (ValueError, TypeError) as error:
        raise ValueError(f"{where}: {error}") from error


def check_writable(target: str) -> None:
    """Before anything runs: an hour's work must have somewhere to go."""
    folder = Path(target).parent
    if target != "-" and (not folder.is_dir() or not os.access(folder, os.W_OK) or Path(target).is_dir()):
        raise ValueError(f"{target} cannot be written")
