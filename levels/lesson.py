"""A lesson is one workload on two levels: the one below shows the problem, this one the answer.

    python -m levels.03_continuous_batching                 level 02, then level 03, then the table
    python -m levels.03_continuous_batching --prompts FILE  your own requests, on level 03 alone

Invariant: both levels run the same requests with the same settings on the same weights; with prompts of your own, or
with --json -, nothing else runs. Whatever can be refused is refused before the model is loaded, or before it runs."""

import ast
import sys
from argparse import Namespace
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from levels import NAMES, load
from minipaged.cli import (
    DONE,
    FAILED,
    check_targets,
    default_params,
    engine_options,
    guarded,
    leaving_at_once,
    make_parser,
    uninterrupted,
    write_json,
)
from minipaged.config import EngineConfig
from minipaged.display import watch
from minipaged.driver import Request, Run, shut_down
from minipaged.profile_table import watch_time
from minipaged.prompts import Wanted, located, parse, read_lines
from minipaged.report import Outcome, make_table
from minipaged.results import make_document
from minipaged.vocabulary import Vocabulary

FILE_WIDTH = 240  # of a table where nobody says how wide it may be
Located = list[tuple[str, Wanted]]  # where a request comes from, for errors; and what it says


def main(number: int, argv: Sequence[str] | None = None) -> int:
    """Run level `number` by its command line; returns the exit code."""
    demo = load(number, "demo")
    parser = make_parser(number, NAMES[number - 1], claim(number), demo.CONFIG)
    args = parser.parse_args(argv)
    return guarded(parser.prog, args.debug, lambda: run(Lesson(number, args, demo), parser.prog))


def run(lesson: "Lesson", prog: str) -> int:
    """A level that serves has no demonstration to run: without prompts, it does that."""
    serve = getattr(lesson.demo, "serve", None)
    if lesson.is_demo and serve is not None:
        with leaving_at_once():  # also while torch is being loaded
            return int(serve(load(lesson.number), lesson.args, lesson.config))
    return lesson.run(prog)


def claim(number: int, part: str = "engine") -> str:
    """The first line of a level's engine.py (or __init__.py, its question), read without importing it."""
    source = (Path(__file__).parent / NAMES[number - 1] / f"{part}.py").read_text(encoding="utf-8")
    return (ast.get_docstring(ast.parse(source)) or "").splitlines()[0]


class Lesson:
    """One command line, carried out."""

    def __init__(self, number: int, args: Namespace, demo: Any):
        self.number, self.args, self.demo = number, args, demo
        self.is_demo = not args.prompt and args.prompts is None
        self.params = default_params(args)
        self.config = EngineConfig(**self.choose_settings(engine_options(args, number)))

    def choose_settings(self, given: dict[str, Any]) -> dict[str, Any]:
        """The demonstration's, and the user's in their place; of those that belong together, all or none."""
        together = getattr(self.demo, "TOGETHER", ())
        given_together = any(name in given for name in together)
        settings = self.demo.CONFIG if self.is_demo else {}
        kept = {name: value for name, value in settings.items() if not (given_together and name in together)}
        return {**kept, **given}

    def run(self, prog: str) -> int:
        check_targets(json=self.args.json, trace=self.args.trace)
        asked = self.read()
        with ExitStack() as self.engines:
            engine = self.make_engine(self.config)
            requests = tokenize(asked, engine.desk.vocabulary)
            check(engine, asked, requests)
            below = self.run_below(requests)
            show_profile = watch_time(engine, wished=self.args.profile)
            outcome = run_level(self.number, engine, requests)
            self.write(outcome)
            if "-" in (self.args.json, self.args.trace):
                show_profile(outcome, Console(stderr=True, highlight=False))
                return verdict(prog, [outcome])
            self.show([*below, outcome])
            show_profile(outcome, results_console())
            if not outcome.interrupted:
                self.explain(engine, requests)
        with ExitStack() as self.engines:  # what has been shown makes room
            more = self.run_more(engine.desk.vocabulary) if self.is_demo and not outcome.interrupted else []
        return verdict(prog, [outcome, *more])

    def make_engine(self, config: EngineConfig) -> Any:
        """This level's, with the model in this process unless others have it; ended with the lesson."""
        model = self.model if config.chosen_backend == "uniproc" else None
        engine = load(self.number).Engine(config, model)
        self.engines.callback(shut_down, engine)
        return engine

    @cached_property
    def model(self) -> Any:
        """The whole of it, for whoever runs it in this process."""
        return load_model(self.config)

    def read(self) -> Located:
        """The requests as they were asked for, still as text."""
        if self.is_demo:
            return [
                (f"demonstration, request {i}", parse(wanted, self.params))
                for i, wanted in enumerate(self.demo.REQUESTS)
            ]
        lines = [(f"--prompt {text[:40]!r}", {"prompt": text}) for text in self.args.prompt]
        if (path := self.args.prompts) is not None:
            lines += [(f"{path}, line {number}", wanted) for number, wanted in read_lines(Path(path))]
        asked = []
        for where, wanted in lines:
            with located(where):
                asked.append((where, parse(wanted, self.params)))
        return asked

    def run_below(self, requests: list[Request]) -> list[Outcome]:
        """The demonstration on the level below; what that level does not have yet is left at its default."""
        number = self.number - 1
        if not self.is_demo or number < 1 or "-" in (self.args.json, self.args.trace):
            return []
        newer: dict[str, Any] = {f.name: f.default for f in fields(EngineConfig) if f.metadata["level"] > number}
        try:
            config = replace(self.config, **newer)
            model = self.model if self.config.chosen_backend == "uniproc" else load_model(config)
            engine = load(number).Engine(config, model)
        except ValueError as error:  # a setting of the user's that only this level can serve
            Console(stderr=True).print(Text(f"{NAMES[number - 1]} cannot run this: {error}"), soft_wrap=True)
            return []
        outcome = run_level(number, engine, requests)
        if outcome.interrupted:
            raise KeyboardInterrupt
        return [outcome]

    def explain(self, engine: Any, requests: list[Request]) -> None:
        """What no table of two levels shows."""
        if self.is_demo and hasattr(self.demo, "explain"):
            self.demo.explain(engine, requests, results_console())

    def run_more(self, vocabulary: Vocabulary) -> list[Outcome]:
        """What else the demonstration shows, each part a table of its own: other requests, or other settings."""
        outcomes: list[Outcome] = []
        for title, wishes, change in getattr(self.demo, "MORE", ()):
            requests = tokenize([(title, parse(wanted, self.params)) for wanted in wishes], vocabulary)
            below = self.run_below(requests)
            engine = self.make_engine(change(self.config))
            outcomes.append(run_level(self.number, engine, requests))
            results_console().print(make_table(title, [*below, outcomes[-1]], self.demo.LOOK_AT))
            if outcomes[-1].interrupted:
                break
        return outcomes

    def write(self, outcome: Outcome) -> None:
        if self.args.json is not None:
            write_json(outcome.document, self.args.json)
        if self.args.trace is not None:
            write_json(outcome.trace, self.args.trace)

    def show(self, outcomes: list[Outcome]) -> None:
        """The answers, then the table."""
        console = results_console()
        for request in outcomes[-1].document["requests"][: 3 if self.is_demo else None]:
            for said in request.get("choices", [request]):
                console.print(show_answer(request, said), soft_wrap=True)
        title = " ".join((self.demo.__doc__ or "").split()) if self.is_demo else "what it cost"
        console.print(make_table(title, outcomes, self.demo.LOOK_AT if self.is_demo else ()))


def show_answer(request: Any, said: Any) -> Text:
    """One answer, under its request's number; of several to one prompt the second is, say, 3.1."""
    number = f"{request['index']}" + (f".{said['index']}" if said is not request else "")
    end = (request["error"] if said["finish_reason"] == "error" else None) or said["finish_reason"]
    answer = said["text"] or str(said["token_ids"])
    return Text.assemble((f"{number:>3}  ", "bold"), answer, (f" ({end})\n", "dim"))


def results_console() -> Console:
    """Stdout, for people: in a file or a pipe, too, a line is a line and a table as wide as it needs to be."""
    console = Console(highlight=False, markup=False, emoji=False)
    console.width = console.width if console.is_terminal else FILE_WIDTH
    return console


def load_model(config: EngineConfig) -> Any:
    with uninterrupted():
        from minipaged.loading import load_model  # late: --help and refusals need no torch

    if (console := Console(stderr=True)).is_terminal:
        console.print(Text(f"loading {config.model}", style="dim"))
    return load_model(config)


def tokenize(asked: Located, vocabulary: Vocabulary) -> list[Request]:
    requests = []
    for where, wanted in asked:
        with located(where):
            requests.append(wanted.tokenize(vocabulary.tokenizer))
    return requests


def check(engine: Any, asked: Located, requests: list[Request]) -> None:
    """Refuse what could not run even alone, before anything runs."""
    for (where, _), request in zip(asked, requests, strict=True):
        with located(where):
            engine.desk.check(request.prompt_token_ids, request.params)


def run_level(number: int, engine: Any, requests: list[Request]) -> Outcome:
    """Run and watch; whatever raises in a run is a failed run. Request ids are the indices."""
    name = NAMES[number - 1]
    try:
        with watch(Console(stderr=True, highlight=False), f"{name} on {engine.config.model}") as on_step:
            run = Run(engine, requests, numbered=True).go(on_step)
    except Exception as error:
        raise RuntimeError(f"the run failed: {type(error).__name__}: {error}") from error
    return Outcome(make_document(run, name), engine.trace.document(), run.interrupted)


def verdict(prog: str, outcomes: Sequence[Outcome]) -> int:
    """The exit code; what went wrong is said in one line."""
    if any(outcome.interrupted for outcome in outcomes):
        print(f"{prog}: interrupted; what was finished until then is reported", file=sys.stderr)
        return FAILED
    requests = [request for outcome in outcomes for request in outcome.document["requests"]]
    if failed := [request for request in requests if request["error"]]:
        first = f"request {failed[0]['index']}: {failed[0]['error']}"
        print(f"{prog}: error: {len(failed)} of {len(requests)} requests failed; {first}", file=sys.stderr)
        return FAILED
    return DONE
