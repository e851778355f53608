"""Is it twice as much? One engine on all cores, and two replicas with half of them each, on the same requests.

    python -m benchmarks.replicas [--scale F] [--repetitions N] [--out FILE] [--model NAME]

W2, 64 requests at once, in turns: whoever is not asked sleeps. Replicas are processes, and cores are shared out among
them (core/processes.py), so where one engine keeps every core busy two have the same arithmetic between them, and read
all weights twice for it. Expected on a CPU: no more than one engine gives; what two gain is the work of one thread, the
engine's own, beside the other's model. They pay where a device of its own waits for each. One JSON document with the
machine, its cores, the versions, the commit and every repetition."""

import argparse
import sys
import time
from collections.abc import Sequence
from statistics import median

from rich.table import Table

from benchmarks.command import Record, begin, finish, make_parser
from benchmarks.machine import count_cores
from benchmarks.workloads import make_requests
from minipaged.cli import guarded
from minipaged.llm import LLM
from minipaged.sampling_params import SamplingParams

SETTINGS = {"max_model_len": 1024, "num_blocks": 1024, "max_num_seqs": 64}


def main(argv: Sequence[str] | None = None) -> int:
    parser = make_parser("replicas", __doc__)
    parser.add_argument("--replicas", metavar="N", type=int, default=2, help="(default %(default)s)")
    args = parser.parse_args(argv)
    return guarded(parser.prog, args.debug, lambda: run(args))


def run(args: argparse.Namespace) -> int:
    document, records = begin("replicas", args, SETTINGS), list[Record]()
    with LLM(args.model, **SETTINGS) as one, LLM(args.model, data_parallel_size=args.replicas, **SETTINGS) as several:
        for repetition in range(-1, args.repetitions):  # the first is for warming up
            ways = ((1, one), (args.replicas, several))
            found = [measure(llm, number, repetition, args.scale) for number, llm in ways]
            compare(*(record.pop("token_ids") for record in found), into=found[1])
            records += found if repetition >= 0 else []
    return finish({**document, "records": records}, args, make_table(records))


def measure(llm: LLM, num_replicas: int, repetition: int, scale: float) -> Record:
    requests = make_requests("W2", llm.engine.desk.vocab_size, repetition, scale=scale)
    params = [SamplingParams(temperature=0, ignore_eos=True, max_tokens=one.max_tokens) for one in requests]
    start = time.perf_counter()
    outputs = llm.generate([one.prompt_token_ids for one in requests], params)
    wall_s = time.perf_counter() - start
    token_ids = [output.outputs[0].token_ids for output in outputs]
    num_output = sum(map(len, token_ids))
    return {
        "replicas": num_replicas,
        "cores_each": max(1, count_cores() // num_replicas),
        "repetition": repetition,
        "prompt_tokens": sum(len(one.prompt_token_ids) for one in requests),
        "output_tokens": num_output,
        "wall_s": wall_s,
        "output_tokens_per_s": num_output / wall_s,
        "token_ids": token_ids,
    }


def compare(alone: list[list[int]], several: list[list[int]], into: Record) -> None:
    """Near-ties aside they are equal: fewer threads, and other batches, add in another order."""
    into["equal_requests"] = sum(a == b for a, b in zip(alone, several, strict=True))


def make_table(records: list[Record]) -> Table:
    """Medians of the repetitions; the ratio is taken within each."""
    table = Table(title=f"64 requests at once, on {count_cores()} cores")
    for title in ("replicas", "cores each", "output tokens/s", "beside one"):
        table.add_column(title, justify="right")
    base = {record["repetition"]: record["output_tokens_per_s"] for record in records if record["replicas"] == 1}
    for number in dict.fromkeys(record["replicas"] for record in records):
        mine = [record for record in records if record["replicas"] == number]
        rate = median(record["output_tokens_per_s"] for record in mine)
        ratio = median(record["output_tokens_per_s"] / base[record["repetition"]] for record in mine)
        table.add_row(str(number), str(mine[0]["cores_each"]), f"{rate:.1f}", f"{ratio:.2f}")
    return table


if __name__ == "__main__":
    sys.exit(main())
