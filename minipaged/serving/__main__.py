"""python -m minipaged.serving: the finished engine behind an HTTP API; what level 08 starts, without its level."""

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import fields
from functools import partial

from ..cli import DONE, SERVING, Parser, add_engine_flag, engine_options, guarded, leave
from ..config import EngineConfig
from .async_llm import AsyncLLM
from .server import serve
from .settings import add_server_flags, read_settings


def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(prog="python -m minipaged.serving", description=(__doc__ or "").partition(": ")[2])
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    add_server_flags(parser)
    engine = parser.add_argument_group("engine", "each an EngineConfig field")
    for f in fields(EngineConfig):
        add_engine_flag(engine, f, {})
    args = parser.parse_args(argv)
    return guarded(parser.prog, args.debug, lambda: run(args))


def run(args: Namespace) -> int:
    options = engine_options(args, SERVING)
    serve(partial(AsyncLLM, **options), EngineConfig(**options).model, read_settings(args))
    return DONE


if __name__ == "__main__":
    leave(main)
