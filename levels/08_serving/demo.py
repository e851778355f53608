"""Many people ask at once, each over a connection of their own; the server is what runs without prompts."""

from argparse import Namespace
from functools import partial
from types import ModuleType

from levels.texts import ask
from minipaged.cli import DONE, flag
from minipaged.config import EngineConfig
from minipaged.serving.settings import read_settings

CONFIG: dict[str, int] = {}
REQUESTS = [{"messages": ask(i, 60), "max_tokens": 32} for i in range(16)]
LOOK_AT = ("output tokens/s",)


def serve(engine: ModuleType, args: Namespace, config: EngineConfig) -> int:
    """Until a signal comes. Raises ValueError for what cannot be served."""
    for name in ("json", "trace", "profile"):
        if getattr(args, name):
            raise ValueError(f"{flag(name)} is of a run: give --prompt or --prompts (without them this level serves)")
    engine.serve(partial(engine.Frontend, **vars(config)), config.model, read_settings(args))
    return DONE
