"""A thread writes, a coroutine reads; what was not read yet is replaced by what is newer, or by the newest so many.

    Letterbox    written  a  ab  abc  abcd          read  a      abcd        each output holds all that came before
    Feed         written  s1 s2 s3 s4 s5            read  s1     s4 s5       the oldest are dropped beyond its size

Invariant: however slow a reader is, it keeps nobody waiting and no more than this. (From level 08.)"""

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

T = TypeVar("T")


class Bell:
    """Rung in any thread, heard in one loop. However often it was rung, it is heard once."""

    def __init__(self) -> None:
        self.loop, self.heard, self.is_ringing = asyncio.get_running_loop(), asyncio.Event(), False

    def ring(self) -> None:
        if not self.is_ringing:
            self.is_ringing = True
            with suppress(RuntimeError):  # the loop is closed: nobody listens any more
                self.loop.call_soon_threadsafe(self.sound)

    def sound(self) -> None:
        self.is_ringing = False
        self.heard.set()

    async def wait(self) -> None:
        await self.heard.wait()
        self.heard.clear()


class Letterbox(Generic[T]):
    """Made within the loop that reads it. hear: is told of every letter when it comes, in the writer's thread."""

    def __init__(self, hear: Callable[[T], None] = lambda letter: None) -> None:
        self.bell, self.newest, self.hear = Bell(), deque[T | Exception](maxlen=1), hear

    def put(self, letter: T | Exception) -> None:
        if not isinstance(letter, Exception):
            self.hear(letter)
        self.newest.append(letter)
        self.bell.ring()

    async def get(self) -> T:
        """The newest that was not read; raises it if it is an error."""
        while not self.newest:
            await self.bell.wait()
        if isinstance(letter := self.newest.popleft(), Exception):
            raise letter
        return letter


class Feed(Generic[T]):
    """Made within the loop that reads it; None ends it."""

    def __init__(self, size: int):
        self.bell, self.items = Bell(), deque[T | None](maxlen=size)

    def put(self, item: T | None) -> None:
        self.items.append(item)
        self.bell.ring()

    async def get(self) -> T | None:
        while not self.items:
            await self.bell.wait()
        return self.items.popleft()
