"""Whoever comes in is counted, and nobody comes in when the house is full or about to close.

    limit = seats (max_num_seqs of every replica) + max_waiting     choices that may be here at once
    full      503 with Retry-After: better told at once than kept waiting
    closing   503 for whoever is new; who is here is served to the end, or until the limit of `drain`

Counted here, exactly, and not by what the engine last said of itself: two hundred may knock between two steps.
Invariant: who came in goes out, however the request ends. (From level 08.)"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from .errors import ApiError, busy, closing


class Gate:
    """limit: how many choices may be in the house at once."""

    def __init__(self, limit: int):
        self.limit, self.num_inside, self.closing = limit, 0, False
        self.empty = asyncio.Event()
        self.empty.set()

    @contextmanager
    def enter(self, num_choices: int) -> Iterator[None]:
        """Raises ApiError, 503 for now, 400 for ever."""
        self.check(num_choices)
        self.num_inside += num_choices
        self.empty.clear()
        try:
            yield
        finally:
            self.num_inside -= num_choices
            if not self.num_inside:
                self.empty.set()

    def check_open(self) -> None:
        if self.closing:
            raise closing()

    def check_size(self, num_choices: int) -> None:
        if num_choices > self.limit:
            raise ApiError(400, f"{num_choices} answers at once; this server holds {self.limit} at most")

    def check(self, num_choices: int) -> None:
        self.check_open()
        self.check_size(num_choices)
        if self.num_inside + num_choices > self.limit:
            raise busy(f"the queue is full: {self.num_inside} of {self.limit} places are taken")

    async def drain(self, timeout_s: float) -> bool:
        """Let nobody in any more, and wait for those who are here; False if some are after timeout_s."""
        self.closing = True
        try:
            async with asyncio.timeout(timeout_s):
                await self.empty.wait()
        except TimeoutError:
            return False
        return True
