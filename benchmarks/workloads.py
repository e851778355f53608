"""Four workloads, each asking one question of an engine, made of random token ids so that nobody knows them before.

    W1   p128 g128                          one request: how soon the first token, how fast the others?
    W2   p32..256 g16..256   x 64 at once   how much can be in flight?
    W3   [ prefix 512 | own 16..32 ] g32 x 32   what is shared, is it computed once?
    W4   p1024 g1   x 8                     how fast is a prompt read?          p: prompt tokens, g: tokens generated

Ids are uniform in [100, V): the low ones are special in many vocabularies. Invariant: name, V, repetition, scale and
seed decide every id, so all engines of one repetition read the same, and no two repetitions share a prefix that a
cache could remember. `scale` multiplies lengths, never the number of requests: that is what a batch lives on."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

FIRST_TOKEN_ID = 100


class Request(NamedTuple):
    """Greedy, and exactly max_tokens long: no end-of-sequence token ends it."""

    prompt_token_ids: list[int]
    max_tokens: int


class Figure(NamedTuple):
    """A key of the measured records; a time is better when it is less."""

    key: str
    label: str
    less_is_better: bool = False


class Draw:
    """Seeded choices; lengths are given at full scale."""

    def __init__(self, seed: str, vocab_size: int, scale: float):
        if vocab_size <= FIRST_TOKEN_ID:
            raise ValueError(f"token ids are drawn from [{FIRST_TOKEN_ID}, V), and the model's V is {vocab_size}")
        self.random, self.vocab_size, self.scale = Random(seed), vocab_size, scale

    def length(self, tokens: int) -> int:
        return max(1, round(tokens * self.scale))

    def between(self, low: int, high: int) -> int:
        return self.random.randint(self.length(low), self.length(high))

    def tokens(self, count: int) -> list[int]:
        return [self.random.randrange(FIRST_TOKEN_ID, self.vocab_size) for _ in range(count)]


def one_stream(draw: Draw) -> list[Request]:
    return [Request(draw.tokens(draw.length(128)), draw.length(128))]


def many_at_once(draw: Draw) -> list[Request]:
    return [Request(draw.tokens(draw.between(32, 256)), draw.between(16, 256)) for _ in range(64)]


def shared_prefix(draw: Draw) -> list[Request]:
    prefix = draw.tokens(draw.length(512))
    return [Request(prefix + draw.tokens(draw.between(16, 32)), draw.length(32)) for _ in range(32)]


def long_prompts(draw: Draw) -> list[Request]:
    return [Request(draw.tokens(draw.length(1024)), 1) for _ in range(8)]


@dataclass(frozen=True)
class Workload:
    what: str
    make: Callable[[Draw], list[Request]]
    figures: tuple[Figure, ...]


OUTPUT = Figure("output_tokens_per_s", "output tokens/s")
PROMPT = Figure("prompt_tokens_per_s", "prompt tokens/s")
DECODE = Figure("decode_tokens_per_s", "decode tokens/s")
FIRST = Figure("ttft_s", "s to first token", less_is_better=True)

WORKLOADS = {
    "W1": Workload("one request", one_stream, (DECODE, FIRST)),
    "W2": Workload("64 requests at once", many_at_once, (OUTPUT,)),
    "W3": Workload("32 requests, one prefix", shared_prefix, (OUTPUT,)),
    "W4": Workload("8 long prompts", long_prompts, (PROMPT,)),
}


def make_requests(
    name: str, vocab_size: int, repetition: int | str, *, scale: float = 1.0, seed: int = 0
) -> list[Request]:
    """The requests of one repetition, which a number or a word names. Raises ValueError for a tiny vocabulary."""
    return WORKLOADS[name].make(Draw(f"{seed}/{name}/{repetition}", vocab_size, scale))


def choose_subset(name: str, num_requests: int, size: int, repetition: int, *, seed: int = 0) -> list[int]:
    """Indices of the requests that a very slow engine is asked for, in order; all, if there are no more than size."""
    return sorted(Random(f"{seed}/{name}/{repetition}/subset").sample(range(num_requests), min(size, num_requests)))
