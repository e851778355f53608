"""Every level runs from the command line by the same rules: its EngineConfig fields are its flags.

    python -m levels.03_continuous_batching --prompt "The capital of France is" --max-tokens 8
    python -m levels.03_continuous_batching --prompts FILE --num-blocks 64 --json -

Exit codes: 0 done, 1 a run failed, 2 bad arguments or input. Invariant: an error is one line on stderr with the flag,
file or number in it; a traceback only with --debug. A result appears whole or not at all. (From level 01.)"""

import argparse
import io
import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, NoReturn

from .config import CHOICES, EngineConfig
from .sampling_params import SamplingParams
from .serving.settings import ServerSettings, add_server_flags

DONE, FAILED, REFUSED = 0, 1, 2
SERVING = 8  # the level that serves
LATER_FLAGS = {f.name: SERVING for f in fields(ServerSettings)}


class Parser(argparse.ArgumentParser):
    """An error is one line."""

    def __init__(self, **options: Any):
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        self.exit(REFUSED, f"{self.prog}: error: {message}\n")


class LevelParser(Parser):
    """A flag of a later level is refused by that level's number."""

    def __init__(self, level: int, **options: Any):
        super().__init__(**options)
        self.later = {flag(f.name): f.metadata["level"] for f in fields(EngineConfig) if f.metadata["level"] > level}
        self.later |= {flag(name): number for name, number in LATER_FLAGS.items() if number > level}
        self.level = level

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        for word in sys.argv[1:] if args is None else args:
            if number := self.later.get(word.partition("=")[0].replace("--no-", "--", 1)):
                self.error(f"{word.partition('=')[0]} comes with level {number:02}, this is level {self.level:02}")
        return super().parse_args(args, namespace)


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def make_parser(level: int, name: str, claim: str, defaults: dict[str, Any]) -> LevelParser:
    """All flags of one level; `defaults` are its demonstration's, used when no prompts are given."""
    prog, exit_codes = f"python -m levels.{name}", "exit codes: 0 done, 1 a run failed, 2 bad arguments or input"
    usage = f"{prog} [--prompt TEXT] [--prompts FILE] [flags]"
    parser = LevelParser(level, prog=prog, usage=usage, description=claim, epilog=exit_codes)
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    add_request_flags(parser)
    output = parser.add_argument_group("results")
    output.add_argument("--json", metavar="FILE", help="write the result document; - is stdout, and nothing else is")
    output.add_argument("--trace", metavar="FILE", help="write what every step did; - is stdout, and nothing else is")
    output.add_argument("--profile", action="store_true", help="show where the time went, by kinds of work")
    engine = parser.add_argument_group("engine", "each an EngineConfig field; the demonstration sets some of its own")
    for f in fields(EngineConfig):
        if f.metadata["level"] <= level and f.name != "seed":
            add_engine_flag(engine, f, defaults)
    if level >= SERVING:
        add_server_flags(parser)
    return parser


def add_request_flags(parser: Parser) -> None:
    requests = parser.add_argument_group("requests", "without any, the level's own demonstration runs")
    requests.add_argument("--prompt", metavar="TEXT", action="append", default=[], help="a request; repeatable")
    requests.add_argument("--prompts", metavar="FILE", help="a request a line, each a JSON object")
    sampling = parser.add_argument_group("sampling", "for requests that do not set their own")
    sampling.add_argument("--max-tokens", metavar="N", type=int, default=16, help="tokens to generate (default 16)")
    sampling.add_argument("--temperature", metavar="F", type=float, default=0.0, help="0 is greedy (default 0)")
    sampling.add_argument("--top-p", metavar="F", type=float, default=1.0, help="1 is off (default 1)")
    sampling.add_argument("--top-k", metavar="N", type=int, default=0, help="0 is off (default 0)")
    seed = "every request's seed, and the engine's; by default each gets its own, drawn from the engine's (default 0)"
    sampling.add_argument("--seed", metavar="N", type=int, help=seed)
    sampling.add_argument("--ignore-eos", action="store_true", help="do not end at an end-of-sequence token")


def add_engine_flag(group: Any, f: Any, defaults: dict[str, Any]) -> None:
    text = f.metadata["help"] + ("" if f.default is None else f" (default {f.default})")
    text += f"; demonstration: {defaults[f.name]}" if f.name in defaults else ""
    if isinstance(f.default, bool):
        group.add_argument(flag(f.name), action=argparse.BooleanOptionalAction, default=None, help=text)
        return
    is_text = isinstance(f.default, str) or f.type == str | None
    is_number = isinstance(f.default, float) or f.type == float | None
    kind = float if is_number else str if is_text else int
    metavar = None if f.name in CHOICES else {str: "NAME", int: "N", float: "F"}[kind]
    group.add_argument(flag(f.name), type=kind, choices=CHOICES.get(f.name), metavar=metavar, help=text)


def engine_options(args: argparse.Namespace, level: int) -> dict[str, Any]:
    """The EngineConfig fields that were given."""
    names = [f.name for f in fields(EngineConfig) if f.metadata["level"] <= level]
    return {name: value for name in names if (value := getattr(args, name)) is not None}


def default_params(args: argparse.Namespace) -> SamplingParams:
    names = ("max_tokens", "temperature", "top_p", "top_k", "seed", "ignore_eos")
    return SamplingParams(**{name: getattr(args, name) for name in names})


def check_targets(**targets: str | None) -> None:
    """Before anything runs: each result needs a place, and a place of its own. Raises ValueError with the flag."""
    owners: dict[Path, str] = {}
    for name, target in targets.items():
        if target is None:
            continue
        if not is_writable(target):
            raise ValueError(f"{flag(name)} {target!r} cannot be written")
        if (owner := owners.setdefault(Path(target).resolve(), name)) != name:
            raise ValueError(f"{flag(owner)} and {flag(name)} have the same target, {target}")


def is_writable(target: str) -> bool:
    path = Path(target)
    if target == "-" or (path.exists() and not path.is_file() and not path.is_dir()):  # stdout, a pipe, a device
        return True
    folder = path.resolve().parent
    return not path.is_dir() and folder.is_dir() and os.access(folder, os.W_OK)


def write_json(document: Any, target: str) -> None:
    """To a file, whole or not at all; to stdout for "-". Raises RuntimeError if there is no room."""
    text, path = json.dumps(document, allow_nan=False) + "\n", Path(target)
    try:
        if target == "-":
            print(text, end="", flush=True)
        elif path.exists() and not path.is_file():  # a pipe or a device: no other file may take its name
            path.write_text(text)
        else:
            replace_file(path.resolve(), text)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise RuntimeError(f"{target} cannot be written: {error.strerror}") from error


def replace_file(path: Path, text: str) -> None:
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_text(text)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def guarded(prog: str, debug: bool, work: Callable[[], int]) -> int:
    """Run work; say what went wrong in one line. ValueError, TypeError and OSError are the user's (exit code 2)."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a character that the terminal lacks is no reason to fail
    try:
        with sigterm_as_ctrl_c():
            code = work()
            print(end="", flush=True)
        return code
    except KeyboardInterrupt:
        print(f"{prog}: interrupted", file=sys.stderr)
        return FAILED
    except BrokenPipeError:  # whoever was reading has left; the exit's own flush must not complain either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Exception as error:
        if debug:
            traceback.print_exc()
        message = " ".join(str(error).split()) or type(error).__name__
        print(f"{prog}: error: {message}", file=sys.stderr)
        return REFUSED if isinstance(error, ValueError | TypeError | OSError) else FAILED


@contextmanager
def sigterm_as_ctrl_c() -> Iterator[None]:
    """Whoever is told to end reports what is there, ends what runs for it elsewhere, and says so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Import what is native: half-way through, an exception ends the process, so Ctrl-C counts when it is in."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    waiting: list[int] = []
    ways = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    held = {int(number): handler for number, handler in ways.items() if callable(handler)}
    for number in held:
        signal.signal(number, lambda number, frame: waiting.append(number))
    try:
        yield
    finally:
        for number, handler in held.items():
            signal.signal(number, handler)
    for number in waiting[:1]:
        held[number](number, None)


@contextmanager
def leaving_at_once() -> Iterator[None]:
    """A server that has not begun to serve has nothing to finish: SIGTERM ends it with 0."""
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(DONE))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def leave(main: Callable[[], int]) -> NoReturn:
    """End the program by what main returns. From then on Ctrl-C could only tear up Python's own goodbye."""
    try:
        code = main()
    except KeyboardInterrupt:  # a second one, while the first was being reported
        code = FAILED
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(code)
