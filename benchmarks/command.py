"""What benchmarks that do W2 in two ways, by turns, have in common: their flags, and how they end."""

import argparse
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.run import describe_run
from minipaged.cli import DONE, Parser, check_targets, write_json
from minipaged.config import DEFAULT_MODEL

Record = dict[str, Any]


def make_parser(name: str, page: str | None) -> Parser:
    """page: the module's docstring, whose first line says what it is."""
    parser = Parser(prog=f"python -m benchmarks.{name}", description=(page or "").split("\n")[0])
    parser.add_argument("--scale", metavar="F", type=float, default=0.25, help="of lengths (default %(default)s)")
    parser.add_argument("--repetitions", metavar="N", type=int, default=3, help="(default %(default)s)")
    parser.add_argument("--model", metavar="NAME", default=DEFAULT_MODEL, help="(default %(default)s)")
    parser.add_argument("--out", metavar="FILE", help="write the JSON document there")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    return parser


def begin(name: str, args: argparse.Namespace, settings: Record) -> Record:
    """The document, but for what will be measured. Raises ValueError if it could not be written in the end."""
    check_targets(out=args.out)
    return {**describe_run(f"benchmarks.{name}"), "model": args.model, "scale": args.scale, "settings": settings}


def finish(document: Record, args: argparse.Namespace, table: Table) -> int:
    if args.out:
        write_json(document, args.out)
    Console(highlight=False).print(table)
    return DONE
