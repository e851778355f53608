"""What HTTP costs: the finished engine called from Python, and the same engine behind a server, on the same requests.

    python -m benchmarks.serving [--scale F] [--repetitions N] [--out FILE] [--model NAME]

W2, 64 requests at once, and a few requests alone, in turns: the engine in this process, and a server in one of its own
with 64 streams to it, each read to its end. Expected: at least nine tenths of the engine's output tokens/s, and
a first token at most 10 ms later. The clients run in this process and share the machine's cores with the server, as
they would not elsewhere. A request that fails, or one token less than asked for, is an error. One JSON document with
the machine, the versions, the commit and every repetition."""

import argparse
import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median

import httpx
from rich.table import Table

from benchmarks.command import Record, begin, finish, make_parser
from benchmarks.workloads import Request, make_requests
from minipaged.bench.clients import Clients, Wish
from minipaged.bench.figures import Promise, Timing, summarise
from minipaged.bench.offline import note
from minipaged.bench.tune import server
from minipaged.cli import guarded
from minipaged.driver import Request as Wanted
from minipaged.driver import Run
from minipaged.llm import LLM
from minipaged.sampling_params import SamplingParams

Work = Callable[[list[Request]], tuple[list[Timing], float]]
Ways = dict[str, Work]
SETTINGS = {"max_model_len": 2048, "num_blocks": 2048, "max_num_seqs": 64}
NUM_ALONE, ALONE_TOKENS = 9, 4  # only its first token is of interest
WARM_UPS = 2  # a product is prepared for each number of rows that is met, and clients who come one by one make many


def main(argv: Sequence[str] | None = None) -> int:
    parser = make_parser("serving", __doc__)
    args = parser.parse_args(argv)
    return guarded(parser.prog, args.debug, lambda: run(args))


def run(args: argparse.Namespace) -> int:
    document, records = begin("serving", args, SETTINGS), list[Record]()
    llm = LLM(args.model, **SETTINGS)
    with server({"model": args.model, **SETTINGS}) as url:
        ways: Ways = {"python": partial(in_python, llm), "http": partial(over_http, url)}
        for repetition in range(-WARM_UPS, args.repetitions):
            found = repeat(ways, repetition, llm.engine.desk.vocab_size, args.scale)
            records += found if repetition >= 0 else []
    return finish({**document, "records": records}, args, make_table(records))


def repeat(ways: Ways, repetition: int, size: int, scale: float) -> list[Record]:
    """All of W2 at once, way by way, and the other way round the next time; then W1 alone, a few times, by turns."""
    order = list(ways.items())[:: 1 if repetition % 2 else -1]
    requests = make_requests("W2", size, repetition, scale=scale)
    together, alone = {name: work(requests) for name, work in order}, {name: list[Timing]() for name in ways}
    for i in range(NUM_ALONE):
        [request] = make_requests("W1", size, f"{repetition}/{i}", scale=scale)
        for name, work in order:
            alone[name] += work([request._replace(max_tokens=ALONE_TOKENS)])[0]
    return [record(name, repetition, together[name], alone[name]) for name in ways]


def in_python(llm: LLM, requests: list[Request]) -> tuple[list[Timing], float]:
    params = [SamplingParams(temperature=0, ignore_eos=True, max_tokens=one.max_tokens) for one in requests]
    wanted = [Wanted(one.prompt_token_ids, each) for one, each in zip(requests, params, strict=True)]
    start = time.perf_counter()
    records = Run(llm.engine, wanted).go().records
    return [note(record) for record in records], time.perf_counter() - start


def over_http(url: str, requests: list[Request]) -> tuple[list[Timing], float]:
    async def ask() -> tuple[list[Timing], float]:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits) as http:
            wishes = [Wish(one.prompt_token_ids, one.max_tokens) for one in requests]
            model = (await http.get("/v1/models")).json()["data"][0]["id"]
            return await Clients(http, model, None).run(wishes, [0.0] * len(wishes))

    return asyncio.run(ask())


def record(name: str, repetition: int, together: tuple[list[Timing], float], alone: list[Timing]) -> Record:
    figures = summarise(*together, Promise())
    if figures["failed"] or any(timing.error for timing in alone):
        raise RuntimeError(f"{name}: {figures['errors'] or [timing.error for timing in alone]}")
    first = [timing.ttft for timing in alone]
    return {"way": name, "repetition": repetition, **figures, "ttft_alone_s": first, "ttft_alone_p50_s": median(first)}


def make_table(records: list[Record]) -> Table:
    """Medians of the repetitions; the ratio is taken within each."""
    table = Table(title="64 at once, and one alone")
    for title in ("", "output tokens/s", "beside Python", "first token alone, p50"):
        table.add_column(title, justify="right" if title else "left")
    base = {r["repetition"]: r["output_tokens_per_s"] for r in records if r["way"] == "python"}
    for way in ("python", "http"):
        mine = [one for one in records if one["way"] == way]
        ratio = median(one["output_tokens_per_s"] / base[one["repetition"]] for one in mine)
        first = median(moment for one in mine for moment in one["ttft_alone_s"])
        rate = median(one["output_tokens_per_s"] for one in mine)
        table.add_row(way, f"{rate:.1f}", f"{ratio:.0%}", f"{1000 * first:.1f} ms")
    return table


if __name__ == "__main__":
    sys.exit(main())
