"""Start and stop, and kill, again and again: what is left behind, and how long does the news take?

    python -m benchmarks.endurance --model DIR --cycles 20 --kills 50 --json benchmarks/results/endurance.json

A cycle starts two slices of two stages on a tiny model, answers one request and stops. A kill starts two stages or two
slices, answers requests all the time, and sends SIGKILL to one of the ranks at a moment that chance chooses, from the
first import on. Expected: nothing left, neither process nor port nor shared memory; every error names the rank that was
killed, within five seconds.

It takes a while, so a file that is there is gone on with, and --seconds ends a part of it early. A kill in which this
process itself did not run for a second (somebody stopped it, or took all cores) is listed as disturbed, and repeated:
its time says nothing about engines."""

import argparse
import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from threading import Event, Thread, Timer
from typing import Any

from benchmarks.machine import describe_commit, describe_machine, describe_versions
from minipaged.config import EngineConfig
from minipaged.engine import Engine
from minipaged.parallel.crew import RankError
from minipaged.parallel.distributed import DistributedExecutor
from minipaged.parallel.lines import Line
from minipaged.parallel.meeting import OWN
from minipaged.parallel.multiprocess import Processes
from minipaged.sampling_params import SamplingParams

LONGEST_S = 10.0  # into the life of an engine, at which a rank is killed
TICK_S, DISTURBED_S = 0.1, 1.0
AT_MOST_S = 5.0  # for the news


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.endurance", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--model", required=True, metavar="DIR", help="a small one: nothing here is about speed")
    parser.add_argument("--cycles", type=int, default=20, metavar="N")
    parser.add_argument("--kills", type=int, default=50, metavar="N")
    parser.add_argument("--seconds", type=float, default=1e9, metavar="N", help="begin nothing new after so long")
    parser.add_argument("--at-once", type=int, default=1, metavar="N", help="engines that live at the same time")
    parser.add_argument("--json", metavar="FILE", type=Path, help="gone on with, if it is there")
    args = parser.parse_args()
    document = read(args.json) or begin()
    deadline = time.monotonic() + args.seconds
    while time.monotonic() < deadline and go_on(document, args):
        write(document, args.json)
    print(json.dumps(document["summary"]))


def begin() -> dict[str, Any]:
    where = {"machine": describe_machine(), "versions": describe_versions(), **describe_commit()}
    empty: dict[str, Any] = {"cycles": [], "kills": [], "disturbed": [], "left_behind": []}
    return {"summary": summarize(empty), **where, **empty}


def read(path: Path | None) -> dict[str, Any] | None:
    return json.loads(path.read_text()) if path and path.exists() else None


def write(document: dict[str, Any], path: Path | None) -> None:
    document["summary"] = summarize(document)
    if path:
        path.write_text(json.dumps(document, indent=1) + "\n")


def summarize(document: dict[str, Any]) -> dict[str, Any]:
    kills = document["kills"]
    return {
        "cycles": len(document["cycles"]),
        "kills": len(kills),
        "while_serving": sum(kill["serving"] for kill in kills),
        "named": sum(kill["error"].startswith(f"rank {kill['rank']} died: killed by SIGKILL") for kill in kills),
        "in_time": sum(kill["news_s"] <= AT_MOST_S for kill in kills),
        "slowest_s": max((kill["news_s"] for kill in kills), default=None),
        "disturbed": len(document["disturbed"]),
        "left_behind": len(document["left_behind"]),
    }


def go_on(document: dict[str, Any], args: argparse.Namespace) -> bool:
    """The next cycles or kills, as many as at once, and a look at what they left; False if all are done."""
    before, number = what_is_there(), len(document["kills"]) + len(document["disturbed"])
    with ThreadPoolExecutor(args.at_once) as pool:
        if missing := max(0, args.cycles - len(document["cycles"])):
            times = pool.map(run_cycle, [args.model] * min(missing, args.at_once))
            document["cycles"] += [round(seconds, 2) for seconds in times]
        elif missing := max(0, args.kills - len(document["kills"])):
            dice = [Random(number + i) for i in range(min(missing, args.at_once))]
            for kill in pool.map(run_kill, [args.model] * len(dice), dice):
                document["disturbed" if kill["paused_s"] > DISTURBED_S else "kills"].append(kill)
        else:
            return False
    document["left_behind"] += sorted(what_is_there() - before)
    return True


def make_engine(model: str, tensor: int, pipeline: int, launcher: Processes) -> Engine:
    config = EngineConfig(model=model, num_blocks=64, block_size=4, max_model_len=64)
    split = {"tensor_parallel_size": tensor, "pipeline_parallel_size": pipeline}
    backend = {"distributed_executor_backend": "mp"}
    config = replace(config, **split, **backend)
    return Engine(config, executor=DistributedExecutor(config, launcher, OWN))


def answer(engine: Engine, num_tokens: int) -> None:
    engine.add_request([2, 3, 4], SamplingParams(max_tokens=num_tokens, ignore_eos=True))
    while engine.has_unfinished_requests():
        engine.step()


def run_cycle(model: str) -> float:
    start = time.perf_counter()
    engine = make_engine(model, 2, 2, Processes())
    answer(engine, 4)
    engine.shutdown()
    return time.perf_counter() - start


class Doomed(Processes):
    """One of the ranks is killed, so long after all were started."""

    def __init__(self, rank: int, delay_s: float):
        super().__init__()
        self.rank, self.delay_s = rank, delay_s
        self.killed_at: float | None = None

    def start(self, num_ranks: int) -> list[Line]:
        lines = super().start(num_ranks)
        Timer(self.delay_s, self.kill).start()
        return lines

    def kill(self) -> None:
        self.processes[self.rank].send_signal(signal.SIGKILL)
        self.killed_at = time.perf_counter()


def run_kill(model: str, rng: Random) -> dict[str, Any]:
    """When the kill came, how long the error took, and whether it named the right rank."""
    doomed, split = Doomed(rng.randrange(2), rng.uniform(0.0, LONGEST_S)), rng.choice([(2, 1), (1, 2)])
    was_serving = False
    with watching() as pauses:
        try:
            engine = make_engine(model, *split, doomed)
            was_serving = doomed.killed_at is None
            while True:
                answer(engine, 40)
        except RankError as error:
            heard_at, words = time.perf_counter(), str(error)
    killed_at = doomed.killed_at or heard_at
    paused_s = max((length for start, length in pauses if start + length > killed_at), default=0.0)
    what = {"delay_s": round(doomed.delay_s, 2), "serving": was_serving, "rank": doomed.rank, "split": split}
    return {**what, "news_s": round(heard_at - killed_at, 2), "paused_s": round(paused_s, 2), "error": words}


@contextmanager
def watching() -> Iterator[list[tuple[float, float]]]:
    """When, and how long, this process did not run, beyond the tick of a watch; told in the end."""
    pauses: list[tuple[float, float]] = []
    over = Event()

    def watch() -> None:
        last = time.perf_counter()
        while not over.wait(TICK_S):
            now = time.perf_counter()
            pauses.append((last, now - last - TICK_S))
            last = now

    thread = Thread(target=watch)
    thread.start()
    try:
        yield pauses
    finally:
        over.set()
        thread.join()


def what_is_there() -> set[str]:
    """Children, ports on which this process listens, and shared memory."""
    me = os.getpid()
    children = {f"process {pid}" for pid in Path(f"/proc/{me}/task/{me}/children").read_text().split()}
    memory = {f"shared memory {path.name}" for path in Path("/dev/shm").iterdir()}
    sockets = set()
    for fd in Path(f"/proc/{me}/fd").iterdir():
        try:
            sockets.add(os.readlink(fd).removeprefix("socket:[").rstrip("]"))
        except OSError:
            continue
    rows = [line.split() for line in Path(f"/proc/{me}/net/tcp").read_text().splitlines()[1:]]
    return children | memory | {f"port {int(row[1][-4:], 16)}" for row in rows if row[3] == "0A" and row[9] in sockets}


if __name__ == "__main__":
    main()
