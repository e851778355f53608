"""python -m minipaged.trace FILE --perfetto OUT: redraw a step trace for ui.perfetto.dev."""

import argparse
import json
import sys
from pathlib import Path

from ..cli import guarded, write_json
from .perfetto import to_perfetto


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m minipaged.trace", description=__doc__, allow_abbrev=False)
    parser.add_argument("file", metavar="FILE", type=Path, help="what --trace wrote")
    parser.add_argument("--perfetto", metavar="OUT", required=True, help="trace events in JSON; - is stdout")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    args = parser.parse_args()
    return guarded(parser.prog, args.debug, lambda: convert(args.file, args.perfetto))


def convert(source: Path, target: str) -> int:
    try:
        document = json.loads(source.read_text(encoding="utf-8"))
        events = to_perfetto(document)
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{source} is no step trace: {type(error).__name__}: {error}") from error
    write_json(events, target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
