"""python -m minipaged.bench serve       many clients against a server with OpenAI's API, rate by rate
python -m minipaged.bench latency     the engine alone, one request at a time
python -m minipaged.bench throughput  the engine alone, all requests at once
python -m minipaged.bench auto-tune   which settings serve most clients in time?"""

import argparse
import os
from collections.abc import Callable, Sequence
from dataclasses import fields

from ..checks import check_integer, check_number
from ..cli import Parser, add_engine_flag, check_targets, guarded, leave
from ..config import EngineConfig
from ..plot import check_plot
from .offline import latency, throughput
from .serve import serve
from .tune import auto_tune

MODES: dict[str, Callable[[argparse.Namespace], int]] = {
    "serve": serve,
    "latency": latency,
    "throughput": throughput,
    "auto-tune": auto_tune,
}


def main(argv: Sequence[str] | None = None) -> int:
    summary = "\n".join((__doc__ or "").splitlines())
    form = argparse.RawDescriptionHelpFormatter
    parser = Parser(prog="python -m minipaged.bench", description=summary, formatter_class=form)
    modes = parser.add_subparsers(dest="mode", metavar="MODE", required=True)
    for name in MODES:
        add_flags(modes.add_parser(name, help=f"see python -m minipaged.bench {name} --help"), name)
    args = parser.parse_args(argv)
    return guarded(f"{parser.prog} {args.mode}", args.debug, lambda: run(args))


def run(args: argparse.Namespace) -> int:
    for name in ("num_prompts", "input_len", "output_len"):
        check_integer(name, getattr(args, name), 1)
    check_integer("prefix_len", args.prefix_len, 0)
    if "burstiness" in args:
        check_number("burstiness", args.burstiness, 0, above_low=True)
        check_integer("max_concurrency", args.max_concurrency, 1, optional=True)
    check_targets(json=args.json, plot=args.plot)
    if args.plot is not None:
        check_plot(args.plot)
    return MODES[args.mode](args)


def add_flags(parser: argparse.ArgumentParser, mode: str) -> None:
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    work = parser.add_argument_group("work")
    work.add_argument("--num-prompts", metavar="N", type=int, default=32, help="clients (default %(default)s)")
    work.add_argument("--input-len", metavar="N", type=int, default=64, help="words of a prompt (default %(default)s)")
    work.add_argument(
        "--output-len", metavar="N", type=int, default=32, help="tokens of an answer (default %(default)s)"
    )
    work.add_argument("--prefix-len", metavar="N", type=int, default=0, help="words that all begin with (default 0)")
    result = parser.add_argument_group("results")
    result.add_argument("--json", metavar="FILE", help="write the document; - is stdout, and nothing else is")
    result.add_argument("--plot", metavar="FILE", help="draw the table as a PNG, PDF or SVG")
    if mode != "serve":
        engine = parser.add_argument_group("engine")
        for f in fields(EngineConfig):
            if f.name not in ("seed", *(("max_num_seqs", "max_num_batched_tokens") if mode == "auto-tune" else ())):
                add_engine_flag(engine, f, {})
    parser.add_argument("--seed", metavar="N", type=int, default=0, help="of prompts and arrivals (default 0)")
    if mode in ("serve", "auto-tune"):
        add_client_flags(parser, mode)


def add_client_flags(parser: argparse.ArgumentParser, mode: str) -> None:
    group = parser.add_argument_group("clients")
    rates = "requests a second, inf for all at once; several with commas (default %(default)s)"
    group.add_argument("--request-rate", metavar="F,...", default="inf", help=rates)
    bursts = "1: Poisson; less: in bursts; more: evenly (default %(default)s)"
    group.add_argument("--burstiness", metavar="F", type=float, default=1.0, help=bursts)
    group.add_argument("--max-concurrency", metavar="N", type=int, help="of requests at once; default: no limit")
    group.add_argument("--timeout", metavar="S", type=float, default=600.0, help="without a word (default %(default)s)")
    for name, text in (("ttft", "to the first token"), ("tpot", "between tokens, mean"), ("e2e", "to the end")):
        group.add_argument(f"--slo-{name}", metavar="S", type=float, help=f"the promise: seconds {text}; default: none")
    group.add_argument("--api-key", metavar="K", default=os.environ.get("MINIPAGED_API_KEY"))
    if mode == "serve":
        group.add_argument("--url", metavar="URL", default="http://127.0.0.1:8000", help="default %(default)s")
        group.add_argument("--served-model", metavar="NAME", help="default: the first that the server lists")
        return
    group.add_argument("--seats", metavar="N,...", default="8,32,64", help="max_num_seqs to try (default %(default)s)")
    budgets = "max_num_batched_tokens to try (default %(default)s)"
    group.add_argument("--budgets", metavar="N,...", default="256,512,1024", help=budgets)


if __name__ == "__main__":
    leave(main)
