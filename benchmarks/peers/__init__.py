"""A peer is whatever can be given token ids and gives tokens back; its name says which, and which variant of it.

    minipaged:3             a level of this house
    transformers:one        `generate`, one request after the other
    transformers:static16   `generate`, batches of 16 that each run to their longest

Invariant: a peer runs all requests of a call to exactly their max_tokens, greedily, and says when its first token is
there; clocks are outside. A new peer is a module here and a row in PEERS. What it imports is imported in its own
process, when it is made, so that this list can be read without torch."""

import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from benchmarks.workloads import Request
from levels import NAMES


class Answer(NamedTuple):
    """What a peer generated, in the order of the requests; model_s: seconds inside its forward, if it knows them."""

    token_ids: list[list[int]]
    model_s: float | None = None


class Peer(Protocol):
    def describe(self) -> dict[str, Any]:
        """The settings that decide its speed, for the record."""
        ...

    def run(self, requests: list[Request], on_first: Callable[[], None]) -> Answer:
        """on_first is called once, as soon as any request has its first token."""
        ...


VARIANTS = {  # the regular expression of what may follow the colon, and how that is spelled for people
    "minipaged": ("|".join(str(i) for i in range(1, len(NAMES) + 1)), f"minipaged:1 to minipaged:{len(NAMES)}"),
    "transformers": (r"one|static[1-9]\d{0,3}", "transformers:one, transformers:static16"),
}


def check_peer(name: str) -> None:
    """Raises ValueError for a name that is none."""
    family, _, variant = name.partition(":")
    if family not in VARIANTS or not re.fullmatch(VARIANTS[family][0], variant):
        raise ValueError(f"engine {name!r} is none of {', '.join(spelled for _, spelled in VARIANTS.values())}")


def make_peer(name: str, folder: Path) -> Peer:
    check_peer(name)
    family, _, variant = name.partition(":")
    peer: Peer = import_module(f"{__name__}.{family}_peer").make(folder, variant)
    return peer


def is_slow(name: str) -> bool:
    """One request at a time: measured on a part of the requests, or a run would take very long."""
    return name.endswith(":one")
