"""What is the scheduler doing? One page that shows it, fed by what the engine writes down anyway.

    event: hello   {"model", "num_blocks", "block_size", ...}          once
    event: look    {"replica": 0, "ttft_s": 0.04,                      up to eight a second, one for each replica
                    "steps": [{"step": 7, "prefill": 96, "decode": 5, "drafts": 0, "accepted": 0, ...}],
                    "blocks": "uuss..cc....",                          u used by one, s shared, c free but remembered
                    "requests": [{"id", "state", "num_prompt", "num_computed", "num_tokens"}],
                    "living": [0, 1]}                                  replicas that answered
    event: ended   {"reason": "the engine has died"}                   the last one

The page (observatory.html) is one file and asks no other machine for anything. Invariant: the engine is asked only
while somebody watches, once for all who do, and a slow watcher misses looks, never holds one up. (From level 08.)"""

import asyncio
import json
from collections import Counter, deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any, Protocol

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, Response

from ..trace.steps import StepRecord
from .connection import EventStream
from .errors import busy
from .frontend import Frontend
from .letterbox import Feed

PAGE = Path(__file__).with_suffix(".html")
PAUSE_S, MAX_WATCHERS, MAX_SHOWN = 0.125, 16, 200
MAX_STEPS = 2000  # in one look: as many as the page keeps
MAX_UNREAD = 64  # looks that lie ready for a watcher
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
FACTS = ("num_blocks", "block_size", "max_num_seqs", "max_num_batched_tokens", "max_model_len")


class Holder(Protocol):
    """A choice that holds memory."""

    request_id: str
    index: int
    num_prompt_tokens: int
    num_tokens: int
    num_computed_tokens: int
    block_table: list[int]


class View(Protocol):
    """One replica's memory, and who waits."""

    num_blocks: int
    holders: list[Any]
    waiting: list[str]
    cached_blocks: list[int]


def make_observatory(front: Frontend) -> APIRouter:
    router, watchers = APIRouter(), Watchers(front)

    @router.get("/", response_class=HTMLResponse)
    async def page() -> HTMLResponse:
        headers = {"Content-Security-Policy": POLICY, "Cache-Control": "no-cache"}
        return HTMLResponse(PAGE.read_text(encoding="utf-8"), headers=headers)

    @router.get("/observatory/events")
    async def events(request: Request) -> Response:
        stream = watchers.watch()
        return EventStream(await anext(stream), stream)

    return router


class Watchers:
    """Whoever looks on, up to a few. latest: how each replica looked last, for whoever comes now."""

    def __init__(self, front: Frontend):
        self.front, self.feeds, self.latest = front, list[Feed[bytes]](), dict[int, bytes]()
        self.looking: asyncio.Task[None] | None = None

    async def watch(self) -> AsyncGenerator[bytes, None]:
        if len(self.feeds) >= MAX_WATCHERS:
            raise busy(f"{len(self.feeds)} are watching; the engine is asked for no more")
        feed = self.join()
        try:
            yield event("hello", self.hello())
            for look in [*self.latest.values()]:
                yield look
            while (news := await feed.get()) is not None:
                yield news
        finally:
            self.feeds.remove(feed)
            if not self.feeds and self.looking:
                self.looking.cancel()
                self.looking = None

    def join(self) -> Feed[bytes]:
        self.feeds.append(Feed[bytes](MAX_UNREAD))
        if self.looking is None or self.looking.done():
            self.looking = asyncio.create_task(self.look_on())
        return self.feeds[-1]

    def hello(self) -> dict[str, Any]:
        return {"model": self.front.name, **{name: getattr(self.front.llm.config, name) for name in FACTS}}

    async def look_on(self) -> None:
        """For all of them; at the end they are told why."""
        try:
            async with aclosing(self.looks()) as looks:
                async for look in looks:
                    self.latest[look["replica"]] = event("look", {**look, "steps": []})
                    self.tell(event("look", look))
            reason = "the server is shutting down" if self.front.llm.is_alive else "the engine has died"
            self.tell(event("ended", {"reason": reason}))
        finally:
            if self.looking is asyncio.current_task():  # else another has begun for those who came since
                self.latest.clear()
                self.tell(None)

    def tell(self, news: bytes | None) -> None:
        for feed in self.feeds:
            feed.put(news)

    async def looks(self) -> AsyncGenerator[dict[str, Any], None]:
        """One for each replica, again and again; nothing while nothing happens."""
        steps, llm = deque[StepRecord](maxlen=MAX_STEPS), self.front.llm
        reading, before = asyncio.create_task(collect(llm.records(), steps)), None
        choices = Counter[str]()  # how many of a request hold memory, now or at the look before
        try:
            while llm.is_alive and not self.front.gate.closing:
                fresh = [*steps]
                steps.clear()
                views: Mapping[int, View] = await llm.look()
                shown = {replica: describe(view) for replica, view in views.items()}
                now = Counter(holder.request_id for view in views.values() for holder in view.holders)
                if fresh or shown != before:
                    for replica, view in shown.items():
                        yield {**view, **self.moment(replica, fresh, Counter(choices | now)), "living": [*shown]}
                before, choices = shown, now
                await asyncio.sleep(PAUSE_S)
        finally:
            reading.cancel()
            with suppress(asyncio.CancelledError):
                await reading

    def moment(self, replica: int, steps: list[StepRecord], choices: Counter[str]) -> dict[str, Any]:
        own = [summary(step, choices) for step in steps if (step.replica or 0) == replica]
        return {"replica": replica, "ttft_s": self.front.metrics.last_ttft_s, "steps": own}


async def collect(records: AsyncGenerator[StepRecord, None], steps: deque[StepRecord]) -> None:
    async with aclosing(records):
        async for record in records:
            steps.append(record)


def summary(step: StepRecord, choices: Counter[str]) -> dict[str, Any]:
    """A step in numbers: whoever ran more tokens than it has choices was read, the others wrote."""
    own = {name: number - step.draft_tokens.get(name, 0) for name, number in step.num_scheduled_tokens.items()}
    read = sum(number for name, number in own.items() if number > max(1, choices[name]))
    return {
        "step": step.step,
        "t_s": step.t_s,
        "prefill": read,
        "decode": sum(own.values()) - read,
        "drafts": sum(step.draft_tokens.values()),
        "accepted": sum(step.accepted_tokens.values()),
        "admitted": len(step.admitted),
        "preempted": len(step.preempted),
        "finished": len(step.finished),
    }


def describe(view: View) -> dict[str, Any]:
    running = [describe_holder(holder) for holder in view.holders[:MAX_SHOWN]]
    waiting = [{"id": name[:8], "state": "waiting"} for name in view.waiting[:MAX_SHOWN]]
    return {"blocks": draw_blocks(view), "requests": running + waiting}


def describe_holder(holder: Holder) -> dict[str, Any]:
    return {
        "id": f"{holder.request_id[:8]}.{holder.index}",
        "state": "running",
        "num_prompt": holder.num_prompt_tokens,
        "num_computed": holder.num_computed_tokens,
        "num_tokens": holder.num_tokens,
    }


def draw_blocks(view: View) -> str:
    """A letter for each block."""
    letters = ["."] * view.num_blocks
    for block in view.cached_blocks:
        letters[block] = "c"
    for block, number in Counter(block for holder in view.holders for block in holder.block_table).items():
        letters[block] = "u" if number == 1 else "s"
    return "".join(letters)


def event(name: str, value: dict[str, Any]) -> bytes:
    return f"event: {name}\ndata: {json.dumps(value, allow_nan=False)}\n\n".encode()
