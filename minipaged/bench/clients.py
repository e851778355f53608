"""One client: it asks when its time has come, listens to the end, and writes down when it heard something.

    arrival |.. waits for a place (concurrency) ..| sent |....| first text | text | text | usage, end

Waiting for a place is part of its time: who could not even ask was not served. Tokens are counted by the server, in the
usage at the end; a server that tells none cannot be measured. Invariant: whatever goes wrong is this client's error and
nobody else's. (From level 08.)"""

import asyncio
import time
from dataclasses import dataclass
from random import Random
from typing import Any

import httpx

from ..sse import StreamReader, delta
from .figures import Timing

WORDS = "time year people way day man thing woman life child world school state family student group country problem"


@dataclass(frozen=True)
class Wish:
    """What one client wants."""

    prompt: str | list[int]
    max_tokens: int


def make_wishes(number: int, input_len: int, output_len: int, prefix_len: int, seed: int) -> list[Wish]:
    """Lengths in words and tokens; the first prefix_len words are the same for all."""
    random, words = Random(seed), WORDS.split()
    prefix = random.choices(words, k=prefix_len)
    return [Wish(" ".join(prefix + random.choices(words, k=input_len)), output_len) for _ in range(number)]


class Clients:
    """Everybody at one server."""

    def __init__(self, http: httpx.AsyncClient, model: str, concurrency: int | None):
        self.http, self.model = http, model
        self.places = asyncio.Semaphore(concurrency or 1_000_000)

    async def run(self, wishes: list[Wish], moments: list[float]) -> tuple[list[Timing], float]:
        """The timings, in the order of the wishes, and how long it took altogether."""
        start = time.perf_counter()
        asking = [self.ask(wish, moment, start) for wish, moment in zip(wishes, moments, strict=True)]
        timings = await asyncio.gather(*asking)
        return timings, time.perf_counter() - start

    async def ask(self, wish: Wish, arrival: float, start: float) -> Timing:
        timing = Timing(arrival)
        await asyncio.sleep(start + arrival - time.perf_counter())
        async with self.places:
            timing.sent = time.perf_counter() - start
            try:
                await self.listen(wish, timing, start)
            except (httpx.HTTPError, RuntimeError, ValueError) as error:
                timing.error = f"{type(error).__name__}: {error}"
        timing.end = time.perf_counter() - start
        return timing

    async def listen(self, wish: Wish, timing: Timing, start: float) -> None:
        body: dict[str, Any] = {"model": self.model, "prompt": wish.prompt, "max_tokens": wish.max_tokens}
        body |= {"temperature": 0, "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}
        reader = StreamReader()
        async with self.http.stream("POST", "/v1/completions", json=body) as answer:
            if answer.is_error:
                raise RuntimeError(f"status {answer.status_code}: {(await answer.aread())[:200]!r}")
            async for line in answer.aiter_lines():
                if event := reader.read(line):
                    note(event, timing, time.perf_counter() - start)
        reader.check_end()
        if not timing.moments:
            raise RuntimeError("an answer without text")
        if not timing.num_output:
            raise RuntimeError("the server does not tell its usage: nobody knows how many tokens these were")


def note(event: dict[str, Any], timing: Timing, moment: float) -> None:
    if delta(event):
        timing.moments.append(moment)
    match event:
        case {"usage": {"prompt_tokens": int(read), "completion_tokens": int(said)}}:
            timing.num_prompt, timing.num_output = read, said
