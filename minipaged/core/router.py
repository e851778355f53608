"""Whoever comes goes to the replica with the least to do, or to the one that has read most of it before.

    replica 0    2 waiting, 5 running     4 x 2 + 5 = 13
    replica 1    0 waiting, 7 running     4 x 0 + 7 =  7     <- the next one goes here, and counts at once

A waiting request weighs more than a running one: it has all its work ahead (the weights are vLLM's). The longest match
wins among replicas that are not much busier than the least busy; what a replica remembers is not asked, which would
cost a step, but guessed: the blocks that it was sent or has said, as many as its pool holds, the oldest forgotten.
Invariant: what was just sent somewhere counts there, before that replica has seen it. (From level 07.)"""

from collections import OrderedDict
from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from ..config import EngineConfig
from ..prefix import ROOT, block_name
from ..trace import Occupancy

WAITING_WEIGHT = 4
SLACK = 4 * WAITING_WEIGHT  # a match is worth four requests more in the queue


@dataclass(eq=False)
class Replica:
    """One engine, as it last said it stood. unseen: ticket -> choices of what was sent since.
    num_turns: steps that it made. error: why it is dead."""

    index: int
    occupancy: Occupancy
    unseen: dict[int, int] = field(default_factory=dict)
    num_sent: int = 0
    num_turns: int = 0
    forward_s: float = 0.0
    error: str | None = None

    @property
    def num_unseen(self) -> int:
        return sum(self.unseen.values())

    @property
    def load(self) -> int:
        return WAITING_WEIGHT * (self.occupancy.num_waiting + self.num_unseen) + self.occupancy.num_running


class Router(Protocol):
    """choose: one of the living. learn: these tokens have been computed there."""

    def choose(self, living: list[Replica], token_ids: list[int], cache_salt: str | None) -> Replica: ...
    def learn(self, replica: Replica, token_ids: list[int], cache_salt: str | None) -> None: ...


class LeastLoaded:
    """Where least waits and runs, what was just sent included; of equals the one that was sent the fewest."""

    def choose(self, living: list[Replica], token_ids: list[int], cache_salt: str | None) -> Replica:
        return min(living, key=lambda replica: (replica.load, replica.num_sent))  # load: 4 x waiting + running

    def learn(self, replica: Replica, token_ids: list[int], cache_salt: str | None) -> None:
        """It makes no difference here."""


class LongestMatch:
    """Whoever knows the longest beginning; of equals the least loaded."""

    def __init__(self, block_size: int, num_blocks: int):
        self.block_size, self.num_blocks = block_size, num_blocks
        self.known: dict[int, OrderedDict[bytes, None]] = {}  # replica -> names of blocks, the oldest first

    def choose(self, living: list[Replica], token_ids: list[int], cache_salt: str | None) -> Replica:
        limit = min(replica.load for replica in living) + SLACK
        near = [replica for replica in living if replica.load <= limit]
        names = list(self.names(token_ids, cache_salt))
        chosen = min(near, key=lambda replica: (-self.count(replica, names), replica.load, replica.num_sent))
        self.remember(chosen, names)
        return chosen

    def learn(self, replica: Replica, token_ids: list[int], cache_salt: str | None) -> None:
        self.remember(replica, list(self.names(token_ids, cache_salt)))

    def names(self, token_ids: list[int], cache_salt: str | None) -> Iterator[bytes]:
        """Of the full blocks; level 04's names."""
        name, extra = ROOT, () if cache_salt is None else (cache_salt,)
        for end in range(self.block_size, len(token_ids) + 1, self.block_size):
            name = block_name(name, token_ids[end - self.block_size : end], extra if end == self.block_size else ())
            yield name

    def count(self, replica: Replica, names: list[bytes]) -> int:
        known: Container[bytes] = self.known.get(replica.index, ())
        return next((i for i, name in enumerate(names) if name not in known), len(names))

    def remember(self, replica: Replica, names: list[bytes]) -> None:
        known: OrderedDict[bytes, None] = self.known.setdefault(replica.index, OrderedDict())
        for name in reversed(names):  # the tail is the first to be forgotten, as in the pool
            known[name] = None
            known.move_to_end(name)
        while len(known) > self.num_blocks:
            known.popitem(last=False)


def make_router(config: EngineConfig) -> Router:
    if config.data_parallel_router == "prefix":
        return LongestMatch(config.block_size, config.num_blocks)
    return LeastLoaded()
