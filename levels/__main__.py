"""python -m levels            the ladder: number, name, question and command
python -m levels diff 3 4   what level 04 changed in Scheduler and Engine
python -m levels compare    every level on one workload: a table, a picture
python -m levels exercise 4             a level's key part, for you to write
python -m levels check 4 --mine DIR     yours under the project's own tests"""

import argparse
import sys
from collections.abc import Callable, Sequence
from difflib import unified_diff
from inspect import getsource
from typing import Any

from rich.console import Console
from rich.syntax import Syntax

from levels import NAMES, load
from levels.compare import add_compare_flags, compare
from levels.exercises import check_exercise, write_exercise
from levels.lesson import claim
from minipaged.cli import DONE, Parser, guarded, leave

SPINE = ("Scheduler", "Replica", "Router", "Engine", "Frontend")  # a replica is what an engine of several is made of


def main(argv: Sequence[str] | None = None) -> int:
    summary, _, details = (__doc__ or "").partition("\n")
    parser = Parser(
        prog="python -m levels",
        description=f"{summary}\n{details}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    diff_parser = commands.add_parser("diff", help="what one level changed")
    diff_parser.add_argument("a", type=int, metavar="A", help="a level's number")
    diff_parser.add_argument("b", type=int, metavar="B", help="another's")
    add_compare_flags(commands.add_parser("compare", help="every level on one workload"))
    add_exercise_flags(commands)
    args = parser.parse_args(argv)
    work = WORK[args.command]
    return guarded(parser.prog, args.debug, lambda: work(args))


def add_exercise_flags(commands: Any) -> None:
    exercise = commands.add_parser("exercise", help="a level's key part, for you to write")
    check = commands.add_parser("check", help="what you wrote, under the project's own tests")
    for parser in (exercise, check):
        parser.add_argument("number", type=int, metavar="LEVEL", help="a level's number")
    exercise.add_argument("--out", metavar="DIR", help="where to write it (default exercise_NN)")
    check.add_argument("--mine", metavar="DIR", required=True, help="where you wrote it")


def show_ladder(args: Any) -> int:
    console = Console(highlight=False)
    for number, name in enumerate(NAMES, 1):
        console.print(f"[bold]{name}[/]  {claim(number, '__init__')}", soft_wrap=True)
        console.print(f"    {claim(number)}", style="dim", soft_wrap=True)
        console.print(f"    python -m levels.{name}\n", soft_wrap=True)
    return DONE


def spine(number: int) -> list[str]:
    """The source lines of the level's Scheduler, Engine and what else it is made of, wherever they live."""
    module = load(number)
    return "\n".join(getsource(getattr(module, name)) for name in SPINE if hasattr(module, name)).splitlines(True)


def diff(a: int, b: int) -> list[str]:
    """A unified diff and, as its last line, its size."""
    lines = list(unified_diff(spine(a), spine(b), NAMES[a - 1], NAMES[b - 1], n=3))
    added, removed = (sum(line.startswith(sign) for line in lines[2:]) for sign in "+-")
    return [*lines, f"level {a:02} -> {b:02}: +{added} -{removed} lines\n"]


def show_diff(args: Any) -> int:
    console, text = Console(highlight=False), "".join(diff(args.a, args.b))
    if console.is_terminal:
        console.print(Syntax(text, "diff", background_color="default"))
    else:
        sys.stdout.write(text)
    return DONE


WORK: dict[str | None, Callable[[Any], int]] = {
    None: show_ladder,
    "diff": show_diff,
    "compare": compare,
    "exercise": write_exercise,
    "check": check_exercise,
}

if __name__ == "__main__":
    leave(main)
