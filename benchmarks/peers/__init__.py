"""A peer is whatever can be given token ids and gives tokens back; its name says which, and which variant of it.

    minipaged:3               a level of this house, in float32; minipaged:3-int8 with weights of 8 bits
    transformers:one          `generate`, one request after the other
    transformers:static16     `generate`, batches of 16 that each run to their longest
    transformers:continuous   its continuous batching, all requests at once
    vllm:float32              vLLM's own CPU backend
    openvino:float32          openvino-genai's continuous batching, in C++
    llamacpp:f32-1            llama.cpp: how its weights are kept, and in how many slots requests run side by side

Invariant: a peer runs all requests of a call to exactly their max_tokens, greedily, and says when its first token is
there; clocks are outside. A new peer is a module here, a row in VARIANTS, and one in environments.py if it needs an
environment of its own. What it imports is imported in its own process, when it is made, so that this list can be read
by any interpreter, without torch."""

import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from benchmarks.workloads import Request

# counted, not imported: whoever runs another engine has none of our packages
NUM_LEVELS = len(list((Path(__file__).parents[2] / "levels").glob("[0-9][0-9]_*")))
MAX_MODEL_LEN = 2048  # of every engine that asks: the longest request of the workloads has 1,025 tokens


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
    "minipaged": (f"[1-{NUM_LEVELS}](-int8|-int4)?", f"minipaged:1 to minipaged:{NUM_LEVELS}, minipaged:4-int8"),
    "transformers": (r"one|static[1-9]\d{0,3}|continuous", "transformers:one, :static16 or :continuous"),
    "vllm": ("float32", "vllm:float32"),
    "openvino": ("float32|float16", "openvino:float32"),
    "llamacpp": (r"(f32|f16|q8_0|q4_1)-[1-9]\d?", "llamacpp:f32-1, llamacpp:q8_0-16"),
}


def check_peer(name: str) -> None:
    """Raises ValueError for a name that is none."""
    family, variant = split_name(name)
    if family not in VARIANTS or not re.fullmatch(VARIANTS[family][0], variant):
        raise ValueError(f"engine {name!r} is none of {', '.join(spelled for _, spelled in VARIANTS.values())}")


def split_name(name: str) -> tuple[str, str]:
    """(family, variant)"""
    family, _, variant = name.partition(":")
    return family, variant


def make_peer(name: str, folder: Path) -> Peer:
    check_peer(name)
    family, variant = split_name(name)
    peer: Peer = import_module(f"{__name__}.{family}_peer").make(folder, variant)
    return peer


def is_slow(name: str) -> bool:
    """One request at a time: measured on a part of the requests, or a run would take very long."""
    return name.endswith(":one")


def is_batched(name: str) -> bool:
    """One batch after the other: some requests that fill a batch run at the rate of all."""
    family, variant = split_name(name)
    return variant.startswith("static") or variant == "continuous" or family == "llamacpp"


def suits(name: str, workload: str) -> bool:
    """Engines for one stream are not asked for many at once, nor those for many streams for one."""
    family, variant = split_name(name)
    if family != "llamacpp":
        return True
    return (workload in ("W1", "W4")) == variant.endswith("-1")


def is_ours(name: str) -> bool:
    return split_name(name)[0] == "minipaged"
