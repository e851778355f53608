"""The lessons' figures, kept: what the levels' pages quote.

    python -m benchmarks.lessons 3 4 [--out benchmarks/results/lessons.json]

Each lesson is run as `python -m levels.NN_name` runs it: the level below, the level, whatever more it shows. One JSON
document, to which a run adds: {"03": {"tables": [{"below", "here"}, ...]}}, each with its metrics and the sums of its
trace, and "seen" where a lesson looks behind the table (level 06: its ranks). Machine, versions and commit stand beside
them: lessons may be measured one after the other, on a machine that is quiet for a minute."""

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.machine import describe_commit, describe_machine, describe_versions
from levels import NAMES, load
from levels.lesson import Lesson, claim, run_level, tokenize
from minipaged.cli import DONE, Parser, guarded, make_parser, write_json
from minipaged.driver import Request
from minipaged.prompts import parse
from minipaged.report import Outcome, at_once, mean_short_latency
from minipaged.timeline import busy_share, common_window

OUT = Path(__file__).parent / "results" / "lessons.json"
Record = dict[str, Any]


def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(prog="python -m benchmarks.lessons", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("numbers", nargs="+", type=int, metavar="N", help="levels, 2 to 7")
    parser.add_argument("--out", metavar="FILE", default=str(OUT), help="(default %(default)s)")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    args = parser.parse_args(argv)
    return guarded(parser.prog, args.debug, lambda: run(args))


def run(args: argparse.Namespace) -> int:
    out = Path(args.out)
    for number in args.numbers:
        record = {"machine": describe_machine(), "versions": describe_versions(), **describe_commit()}
        record |= measure(number, [])
        known = json.loads(out.read_text()) if out.exists() else {}
        write_json(dict(sorted((known | {f"{number:02}": record}).items())), str(out))
    return DONE


def measure(number: int, flags: Sequence[str]) -> Record:
    """One lesson, by its command line."""
    demo = load(number, "demo")
    args = make_parser(number, NAMES[number - 1], claim(number), demo.CONFIG).parse_args(flags)
    lesson = Lesson(number, args, demo)
    with ExitStack() as lesson.engines:
        engine = lesson.make_engine(lesson.config)
        requests = tokenize(lesson.read(), engine.desk.vocabulary)
        tables = [compare(lesson, engine, requests)]
        seen = look(demo, engine, requests)
    for title, wishes, change in getattr(demo, "MORE", ()):
        with ExitStack() as lesson.engines:
            asked = [(title, parse(wanted, lesson.params)) for wanted in wishes]
            more = lesson.make_engine(change(lesson.config))
            tables.append(compare(lesson, more, tokenize(asked, engine.desk.vocabulary)))
    return {"tables": tables, "seen": seen}


def compare(lesson: Lesson, engine: Any, requests: list[Request]) -> Record:
    """A table's two columns."""
    (below,) = lesson.run_below(requests)
    return {"below": summarise(below), "here": summarise(run_level(lesson.number, engine, requests))}


def summarise(outcome: Outcome) -> Record:
    """The metrics, and what a table of two levels reads off the requests and the trace."""
    document, steps = outcome.document, outcome.trace["steps"]
    done = [request["latency_s"] for request in document["requests"]]
    by_replica: dict[str, int] = {}
    for step in steps:
        name = str(step.get("replica") or 0)
        by_replica[name] = by_replica.get(name, 0) + sum(step["num_scheduled_tokens"].values())
    return {
        "level": document["level"],
        "metrics": document["metrics"],
        "short_s": mean_short_latency(outcome),
        "last_short_s": sorted(done)[-2] if len(done) > 1 else None,
        "last_s": max(done),
        "at_once": int(at_once(outcome)),
        "tokens_run": sum(by_replica.values()),
        "tokens_by_replica": dict(sorted(by_replica.items())),
    }


def look(demo: Any, engine: Any, requests: Any) -> Record:
    """Level 06: what each rank holds, and how busy stages are with more and more batches in flight."""
    if not hasattr(demo, "watch"):
        return {}
    seen: Record = {"busy": {}}
    for num_batches in (1, 2, 4):
        _, reports = demo.watch(engine, requests, num_batches)
        stages = [[(span.start_s, span.end_s) for span in report.spans] for report in reports]
        seen["busy"][str(num_batches)] = busy_share(stages, common_window(stages))
    seen["ranks"] = [{"weight_bytes": each.weight_bytes, "kv_bytes": each.kv_bytes} for each in reports]
    return seen


if __name__ == "__main__":
    sys.exit(main())
