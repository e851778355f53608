"""python -m minipaged.trace FILE --perfetto OUT: redraw a step trace for ui.perfetto.dev."""

import json
from collections.abc import Sequence
from pathlib import Path

from ..cli import DONE, Parser, check_targets, guarded, leave, write_json
from .perfetto import to_perfetto


def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(prog="python -m minipaged.trace", description=__doc__)
    parser.add_argument("file", metavar="FILE", type=Path, help="what --trace wrote")
    parser.add_argument("--perfetto", metavar="OUT", required=True, help="trace events in JSON; - is stdout")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    args = parser.parse_args(argv)
    return guarded(parser.prog, args.debug, lambda: convert(args.file, args.perfetto))


def convert(source: Path, target: str) -> int:
    check_targets(perfetto=target)
    try:
        events = to_perfetto(json.loads(source.read_text(encoding="utf-8")))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{source} is no step trace: {type(error).__name__}: {error}") from error
    write_json(events, target)
    return DONE


if __name__ == "__main__":
    leave(main)
