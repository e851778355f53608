"""A sweep: the same clients again at each rate, and where the first words begin to come late.

    rate      1     2     4     8    inf      requests a second, as wished
    goodput   1.0   2.0   3.8   2.1   1.7     as served in time: beyond the bend everybody waits

Before the first rate a few clients warm the server up; they are not counted. (From level 08.)"""

import asyncio
import math
from argparse import Namespace
from typing import Any

import httpx

from ..cli import DONE, FAILED
from .arrivals import arrivals
from .clients import Clients, make_wishes
from .figures import Figures, Promise, summarise
from .results import publish

NUM_WARM = 3
LIMITS = httpx.Limits(max_connections=None)


def serve(args: Namespace) -> int:
    parse_rates(args.request_rate)  # refused before anybody is asked
    results = asyncio.run(sweep(args))
    publish({"mode": "serve", "url": args.url, "settings": settings(args), "runs": results}, args)
    return FAILED if any(run["failed"] for run in results) else DONE


def settings(args: Namespace) -> dict[str, Any]:
    names = ("num_prompts", "input_len", "output_len", "prefix_len", "burstiness", "max_concurrency", "seed")
    return {name: getattr(args, name) for name in names} | {"slo": vars(promise(args))}


def promise(args: Namespace) -> Promise:
    return Promise(args.slo_ttft, args.slo_tpot, args.slo_e2e)


def parse_rates(text: str) -> list[float]:
    """ "1,2.5,inf" in requests a second. Raises ValueError for anything else."""
    try:
        rates = [float(part) for part in text.split(",")]
    except ValueError:
        rates = []
    if not rates or any(math.isnan(rate) or rate <= 0 for rate in rates):
        raise ValueError(f"--request-rate must be numbers > 0, like 1,2,4,inf, not {text!r}")
    return rates


async def sweep(args: Namespace) -> list[Figures]:
    headers = {"Authorization": f"Bearer {args.api_key}"} if args.api_key else {}
    options: dict[str, Any] = {"headers": headers, "timeout": args.timeout, "limits": LIMITS}
    async with httpx.AsyncClient(base_url=args.url.rstrip("/").removesuffix("/v1"), **options) as http:
        clients = Clients(http, args.served_model or await find_model(http), args.max_concurrency)
        await clients.run(make_wishes(NUM_WARM, args.input_len, args.output_len, 0, -1), [0.0] * NUM_WARM)
        return [await run_rate(clients, rate, args) for rate in parse_rates(args.request_rate)]


async def run_rate(clients: Clients, rate: float, args: Namespace) -> Figures:
    """Each rate has prompts of its own: nothing is found in a cache that another rate filled."""
    seed = args.seed * 1000 + round(1000 * min(rate, 10**6))
    wishes = make_wishes(args.num_prompts, args.input_len, args.output_len, args.prefix_len, seed)
    timings, wall_s = await clients.run(wishes, arrivals(args.num_prompts, rate, args.burstiness, args.seed))
    wished = None if math.isinf(rate) else rate
    return {"request_rate": wished, **summarise(timings, wall_s, promise(args))}


async def find_model(http: httpx.AsyncClient) -> str:
    """Raises RuntimeError if nobody is there."""
    try:
        answer = (await http.get("/v1/models")).raise_for_status()
    except httpx.HTTPError as error:
        raise RuntimeError(f"no server answers at {http.base_url}: {error}") from error
    return str(answer.json()["data"][0]["id"])
