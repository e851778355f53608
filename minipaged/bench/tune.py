"""Which settings serve most clients in time? A server for each, the same clients for all, and the best at the end.

    max_num_seqs \\ max_num_batched_tokens    256    512    1024
                                       8      1.1    1.1     1.0      requests a second that kept their promise
                                      32      1.9    2.4     2.1

More seats: more in flight, and more time between the tokens of each. A larger budget: prompts are read sooner, and
everybody waits longer for each step. Where the two meet depends on the machine. (From level 08.)"""

import asyncio
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from itertools import product
from typing import Any

from ..cli import DONE, flag
from ..config import EngineConfig
from .figures import Figures
from .results import publish
from .serve import parse_rates, promise, settings, sweep

END_S = 60  # for a server to leave


def auto_tune(args: Namespace) -> int:
    if len(parse_rates(args.request_rate)) != 1:
        raise ValueError(f"--request-rate: auto-tune compares at one rate, not {args.request_rate}")
    if not any(vars(promise(args)).values()):
        raise ValueError("--slo-ttft, --slo-tpot or --slo-e2e: without a promise there is no goodput to tune for")
    runs = list[Figures]()
    for seats, budget in product(parse_numbers("--seats", args.seats), parse_numbers("--budgets", args.budgets)):
        engine = {"max_num_seqs": seats, "max_num_batched_tokens": budget}
        with server(fixed_options(args) | engine) as url:
            [run] = asyncio.run(sweep(Namespace(**{**vars(args), "url": url, "served_model": None})))
        runs.append({"engine": engine, **run})
        print(f"{engine}: goodput {run['goodput_requests_per_s']:.2f} requests/s", file=sys.stderr, flush=True)
    best = max(runs, key=lambda run: float(run["goodput_requests_per_s"]))
    publish({"mode": "auto-tune", "settings": settings(args), "runs": runs, "best": best["engine"]}, args)
    if args.json != "-":
        print("best: " + " ".join(f"{flag(name)} {value}" for name, value in best["engine"].items()))
    return DONE


def fixed_options(args: Namespace) -> dict[str, Any]:
    """The EngineConfig fields that were given, and are the same for all."""
    names = [f.name for f in fields(EngineConfig)]
    return {name: value for name in names if (value := getattr(args, name, None)) is not None}


def parse_numbers(name: str, text: str) -> list[int]:
    numbers = [int(part) for part in text.split(",") if part.isdecimal() and int(part) > 0]
    if len(numbers) != len(text.split(",")):
        raise ValueError(f"{name} must be whole numbers >= 1, like 8,32,64, not {text!r}")
    return numbers


@contextmanager
def server(options: dict[str, Any]) -> Iterator[str]:
    """Its address, while it runs. Raises RuntimeError, with the server's last words, if it does not start."""
    command = [sys.executable, "-m", "minipaged.serving", "--port", "0", *words(options)]
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            if "http" not in line:
                process.wait(END_S)
                errors.seek(0)
                raise RuntimeError(f"the server did not start: {(errors.read().splitlines() or ['no word'])[-1]}")
            yield line.split()[-1]
        finally:
            process.terminate()
            process.wait(END_S)


def words(options: dict[str, Any]) -> list[str]:
    """Options as flags."""
    return [word for name, value in options.items() for word in write_flag(name, value)]


def write_flag(name: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [flag(name) if value else flag(name).replace("--", "--no-", 1)]
    return [flag(name), str(value)]
