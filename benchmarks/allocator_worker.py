"""The inside of a block manager's process: new pools are filled at leisure, then all is measured in one short moment.

    harness                                           worker
                                                      {"loaded": {...}}        the manager's settings, the interpreter's
    {"pools": [1000, 1000000], "seed": "0/0"}
                                                      {"event": "filled"}
    {"event": "go"}
                                                      {"measured": [...]}      for each pool, see allocator_work.Work

So that the harness can let all managers fill first, and then measure one right after the other: a machine that is slow
for a while is slow for all. Clocks are in here: an operation takes microseconds, a message more. The first job is the
worker's own, on the smallest pool, and warms it up."""

import json
import platform
import sys
from typing import Any, TextIO

from benchmarks.allocator_work import SMALLEST_POOL, Work, fill, measure
from benchmarks.managers import make_manager
from benchmarks.worker import Send, complain, die_with_parent, open_channel


def main(name: str) -> None:
    die_with_parent()
    serve(name, sys.stdin, open_channel())


def serve(name: str, source: TextIO, send: Send) -> None:
    """Until the source ends, or something goes wrong."""
    try:
        send({"loaded": warm_up(name)})
        while line := source.readline():
            answer_job(name, json.loads(line), source, send)
    except Exception as error:
        complain(error, send)


def warm_up(name: str) -> dict[str, Any]:
    work = Work(make_manager(name, SMALLEST_POOL), SMALLEST_POOL, "warm-up")
    fill([work])
    measure([work])
    return {**work.manager.settings, "python": platform.python_version()}


def answer_job(name: str, job: dict[str, Any], source: TextIO, send: Send) -> None:
    works = [Work(make_manager(name, num_blocks), num_blocks, job["seed"]) for num_blocks in job["pools"]]
    fill(works)
    send({"event": "filled"})
    if source.readline():
        send({"measured": measure(works)})


if __name__ == "__main__":
    main(*sys.argv[1:])
