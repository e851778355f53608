"""Start and stop, and kill, again and again: what is left behind, and how long does the news take?

    python -m benchmarks.endurance --cycles 20 --kills 50 --json benchmarks/results/endurance.json

A cycle starts two slices of two stages on a tiny model, answers one request and stops. A kill starts two stages or two
slices, answers requests all the time, and sends SIGKILL to one of the ranks at a moment that chance chooses, from the
first import on. Expected: nothing left, neither process nor port nor shared memory; every error names the rank that was
killed, within five seconds."""

import argparse
import json
import os
import signal
import time
from pathlib import Path
from random import Random
from threading import Timer
from typing import Any

from benchmarks.machine import describe_machine
from minipaged.config import EngineConfig
from minipaged.engine import Engine
from minipaged.parallel.crew import RankError
from minipaged.parallel.multiprocess import Processes
from minipaged.sampling_params import SamplingParams

LONGEST_S = 6.0  # into the life of an engine, at which a rank is killed


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.endurance", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--model", required=True, metavar="DIR", help="a small one: nothing here is about speed")
    parser.add_argument("--cycles", type=int, default=20, metavar="N")
    parser.add_argument("--kills", type=int, default=50, metavar="N")
    parser.add_argument("--json", metavar="FILE", type=Path)
    args = parser.parse_args()
    before = what_is_there()
    cycles = [run_cycle(args.model) for _ in range(args.cycles)]
    rng = Random(0)
    kills = [run_kill(args.model, rng) for _ in range(args.kills)]
    document = {
        "machine": describe_machine(),
        "cycles": {"number": len(cycles), "seconds": [round(s, 2) for s in cycles]},
        "kills": {
            "number": len(kills),
            "named": sum(kill["error"].startswith(f"rank {kill['rank']} died: killed by SIGKILL") for kill in kills),
            "slowest_s": max((kill["news_s"] for kill in kills), default=None),
            "each": kills,
        },
        "left_behind": sorted(what_is_there() - before),
    }
    text = json.dumps(document)
    print(json.dumps({**document, "kills": {**document["kills"], "each": "..."}}))
    if args.json:
        args.json.write_text(text + "\n")


def make_engine(model: str, tensor: int, pipeline: int) -> Engine:
    config = EngineConfig(model=model, num_blocks=64, block_size=4, max_model_len=64)
    split = {"tensor_parallel_size": tensor, "pipeline_parallel_size": pipeline}
    return Engine(EngineConfig(**{**vars(config), **split}))


def answer(engine: Engine, num_tokens: int) -> None:
    engine.add_request([2, 3, 4], SamplingParams(max_tokens=num_tokens, ignore_eos=True))
    while engine.has_unfinished_requests():
        engine.step()


def run_cycle(model: str) -> float:
    start = time.perf_counter()
    engine = make_engine(model, 2, 2)
    answer(engine, 4)
    engine.shutdown()
    return time.perf_counter() - start


def run_kill(model: str, rng: Random) -> dict[str, Any]:
    """When the kill came, how long the error took, and whether it named the right rank."""
    delay_s, rank, split = rng.uniform(0.0, LONGEST_S), rng.randrange(2), rng.choice([(2, 1), (1, 2)])
    killed_at: list[float] = []
    start_ranks = Processes.start

    def start_and_set_the_clock(launcher: Processes, num_ranks: int) -> Any:
        lines = start_ranks(launcher, num_ranks)

        def kill() -> None:
            launcher.processes[rank].send_signal(signal.SIGKILL)
            killed_at.append(time.perf_counter())

        Timer(delay_s, kill).start()
        return lines

    Processes.start = start_and_set_the_clock  # type: ignore[method-assign]
    try:
        engine = make_engine(model, *split)
        while True:
            answer(engine, 40)
    except RankError as error:
        news_s, words = time.perf_counter() - killed_at[0], str(error)
    finally:
        Processes.start = start_ranks  # type: ignore[method-assign]
    return {"delay_s": round(delay_s, 2), "rank": rank, "split": split, "news_s": round(news_s, 2), "error": words}


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
