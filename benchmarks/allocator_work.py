"""The same operations on every block manager, each timed alone, on pools in which every block still knows a text.

    fill            requests of 16 blocks come and go until each block of a pool has held one of their texts:
                    [ forgotten next ... | known x 16 | ... last to be forgotten ]    the free queue; known: its middle
    adopt new       16 requests of 257 tokens that nobody has read: 17 blocks each, from the queue's head
    decode          64 tokens for each of them, one each in turn: 4 more blocks each
    release         these 16, of 21 blocks each
    adopt known     the 16 texts in the middle, and one token more: 16 blocks each are found there, and one is new

Only the fill depends on a pool's size. What comes after it alternates between the pools, operation by operation: 1,000
blocks and 1,000,000 are measured in the same milliseconds. Sequences are made, and token ids drawn, between the clocks.
These count the time of this thread on a processor: on a shared machine somebody else's turn takes longer than any
operation. The garbage collector is off, as it is in timeit. Invariant: the seed decides every id, so all managers of a
repetition hold the same texts, and afterwards every block is free. (Imports nothing that vLLM's interpreter lacks.)"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from random import Random
from time import thread_time_ns
from typing import Any

from benchmarks.managers import BLOCK_SIZE, Manager

NUM_REQUESTS = 16
BLOCKS_PER_TEXT = 16
NUM_DECODED = 64
SMALLEST_POOL = 1000  # new and grown blocks must leave the middle of the queue alone
OPERATIONS = {  # how many blocks a timed operation moves, and what it is
    "adopt new": (BLOCKS_PER_TEXT + 1, "a request of 257 tokens that nobody has read, 17 blocks"),
    "adopt known": (BLOCKS_PER_TEXT + 1, "the same, 16 blocks of it found in the middle of the free queue"),
    "decode": (NUM_REQUESTS, "16 times a token, a slot for it, and a name for what is full; 16 sequences in turn"),
    "release": (BLOCKS_PER_TEXT + 1 + NUM_DECODED // BLOCK_SIZE, "a sequence of 321 tokens, 21 blocks"),
}


class Work:
    """One manager's pool, and what was measured on it: nanoseconds, and how many tokens each admission found."""

    def __init__(self, manager: Manager, num_blocks: int, seed: str):
        self.manager, self.num_blocks, self.seed = manager, num_blocks, seed
        self.samples: dict[str, list[int]] = {name: [] for name in OPERATIONS}
        self.fill_ns, self.longest_ns = 0, 0  # of all adopts and releases in the fill; of the longest one
        self.num_known: list[int] = []

    def draw(self, name: str, num_more: int = 0, num_blocks: int = BLOCKS_PER_TEXT) -> list[int]:
        """A text of whole blocks, and so many tokens more; ids below 65,536."""
        count = num_blocks * BLOCK_SIZE + num_more
        return memoryview(Random(f"{self.seed}/{name}").randbytes(2 * count)).cast("H").tolist()

    def fill(self) -> None:
        """One after the other, so that texts lie in the queue in this order."""
        for i in range(-(-self.num_blocks // BLOCKS_PER_TEXT)):
            left = self.num_blocks - i * BLOCKS_PER_TEXT
            seq = self.manager.open(f"fill {i}", self.draw(f"fill {i}", num_blocks=min(BLOCKS_PER_TEXT, left)))
            for operation in (partial(self.adopt, seq), partial(self.manager.release, seq)):
                nanoseconds = clock(operation)
                self.fill_ns += nanoseconds
                self.longest_ns = max(self.longest_ns, nanoseconds)

    def operations(self) -> Iterator[tuple[str, Callable[[], Any]]]:
        """What is to be timed, in order; the caller does it."""
        new = [self.manager.open(f"new {i}", self.draw(f"new {i}", num_more=1)) for i in range(NUM_REQUESTS)]
        for seq in new:
            yield "adopt new", partial(self.adopt, seq)
        for start in range(0, NUM_DECODED, BLOCK_SIZE):
            yield "decode", partial(self.decode_block, new, range(start, start + BLOCK_SIZE))
        for seq in new:
            yield "release", partial(self.manager.release, seq)
        first = self.num_blocks // BLOCKS_PER_TEXT // 2 - NUM_REQUESTS // 2
        texts = [f"fill {i}" for i in range(first, first + NUM_REQUESTS)]
        known = [self.manager.open(f"{text} again", [*self.draw(text), 7]) for text in texts]
        for seq in known:
            yield "adopt known", partial(self.adopt, seq)
        for seq in known:
            self.manager.release(seq)

    def adopt(self, seq: Any) -> None:
        self.num_known.append(self.manager.adopt(seq))

    def decode_block(self, sequences: list[Any], tokens: range) -> None:
        """All in turn, as in an engine's steps: each fills a block, and opens the next."""
        grow = self.manager.grow
        for token_id in tokens:
            for seq in sequences:
                grow(seq, token_id)

    def result(self) -> dict[str, Any]:
        """Raises RuntimeError if a block is lost."""
        if (num_free := self.manager.num_free_blocks()) != self.num_blocks:
            raise RuntimeError(f"{num_free} of {self.num_blocks} blocks are free when everybody has left")
        return {name: getattr(self, name) for name in ("num_blocks", "samples", "fill_ns", "longest_ns", "num_known")}


def fill(works: list[Work]) -> None:
    with collector_off():
        for work in works:
            work.fill()


def measure(works: list[Work]) -> list[dict[str, Any]]:
    """Each operation on all pools, then the next one."""
    with collector_off():
        for turn in zip(*(work.operations() for work in works), strict=True):
            for work, (name, operation) in zip(works, turn, strict=True):
                work.samples[name].append(clock(operation))
    return [work.result() for work in works]


@contextmanager
def collector_off() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def clock(operation: Callable[[], Any]) -> int:
    start = thread_time_ns()
    operation()
    return thread_time_ns() - start
