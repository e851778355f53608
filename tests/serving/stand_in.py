"""AsyncLLM without processes: an engine that a thread turns, for tests that are about what stands in front of it.

    async with ThreadLLM(Engine(config)) as llm:        llm.pause() holds the engine between two steps
        async for output in llm.generate([1, 2], params): ...

What it gives is cumulative, and a slow reader finds only the newest, as with the real one."""

import asyncio
import threading
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

from minipaged.outputs import RequestOutput, report
from minipaged.serving.async_llm import EngineDeadError, Stats
from minipaged.trace.steps import StepRecord


class Mailbox:
    """Holds one output: the newest."""

    def __init__(self, hear: Any) -> None:
        self.hear = hear
        self.latest: RequestOutput | Exception | None = None
        self.arrived = asyncio.Event()

    def put(self, item: RequestOutput | Exception) -> None:
        if not isinstance(item, Exception):
            self.hear(item)
        self.latest = item
        self.arrived.set()

    async def get(self) -> RequestOutput:
        await self.arrived.wait()
        self.arrived.clear()
        if isinstance(self.latest, Exception):
            raise self.latest
        assert self.latest is not None
        return self.latest


class ThreadLLM:
    def __init__(self, engine: Any):
        self.engine, self.config, self.vocabulary = engine, engine.config, engine.desk.vocabulary
        self.boxes: dict[str, Mailbox] = {}
        self.lock, self.may_run, self.stopped = threading.Lock(), threading.Event(), False
        self.error: Exception | None = None
        self.observers: list[object] = []
        self.may_run.set()

    async def __aenter__(self) -> "ThreadLLM":
        self.loop = asyncio.get_running_loop()
        self.thread = threading.Thread(target=self.turn, daemon=True)
        self.thread.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        self.stopped = True
        self.may_run.set()
        await asyncio.to_thread(self.thread.join)

    def pause(self) -> None:
        self.may_run.clear()

    def go_on(self) -> None:
        self.may_run.set()

    def turn(self) -> None:
        wake = threading.Event()
        while not self.stopped and self.error is None:
            self.may_run.wait()
            with self.lock:
                has_work = self.engine.has_unfinished_requests()
                try:
                    outputs = self.engine.step() if has_work else []
                except Exception as error:
                    self.error = error
                    outputs = []
            for output in outputs:
                self.loop.call_soon_threadsafe(self.deliver, output)
            if not has_work:
                wake.wait(0.002)
        if self.error is not None:
            self.loop.call_soon_threadsafe(self.tell_death)

    def deliver(self, output: RequestOutput) -> None:
        if box := self.boxes.get(output.request_id):
            box.put(output)

    def tell_death(self) -> None:
        for box in self.boxes.values():
            box.put(EngineDeadError(str(self.error)))

    @property
    def is_alive(self) -> bool:
        return self.error is None

    async def generate(
        self,
        prompt: list[int],
        params: Any,
        request_id: str,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
        hear: Any,
    ) -> AsyncGenerator[RequestOutput, None]:
        if self.error is not None:
            raise EngineDeadError(str(self.error))
        box = self.boxes[request_id] = Mailbox(hear)
        try:
            with self.lock:
                self.engine.add_request(prompt, params, request_id, priority, cache_salt)
            finished = False
            while not finished:
                output = await box.get()
                finished = output.finished
                yield output
        finally:
            del self.boxes[request_id]
            with self.lock:
                self.engine.abort(request_id)

    def abort(self, request_id: str) -> None:
        with self.lock:
            live = self.engine.desk.live.get(request_id, [])
            self.engine.abort(request_id)
        if (box := self.boxes.get(request_id)) and live:
            self.loop.call_soon_threadsafe(box.put, report(live, self.vocabulary.decode))

    async def look(self) -> dict[int, Any]:
        with self.lock:
            blocks, held = self.engine.blocks, self.engine.scheduler.running
            remembered = getattr(blocks, "cached_blocks", [])
            holders = [
                SimpleNamespace(
                    request_id=seq.request_id,
                    index=seq.choice,
                    num_prompt_tokens=seq.num_prompt_tokens,
                    num_tokens=len(seq.tokens),
                    num_computed_tokens=seq.num_computed_tokens,
                    block_table=list(seq.block_table),
                )
                for seq in held
            ]
            waiting = [seq.request_id for seq in self.engine.scheduler.waiting]
            view = SimpleNamespace(
                num_blocks=blocks.num_blocks, holders=holders, waiting=waiting, cached_blocks=remembered
            )
            return {0: view}

    async def records(self) -> AsyncGenerator[StepRecord, None]:
        seen, me = len(self.engine.trace.steps), object()
        self.observers.append(me)
        try:
            while True:
                steps = self.engine.trace.steps
                for record in steps[seen:]:
                    yield record
                seen = len(steps)
                await asyncio.sleep(0.01)
        finally:
            self.observers.remove(me)

    def stats(self) -> Stats:
        with self.lock:
            stats = Stats(**self.engine.occupancy._asdict())
            for record in self.engine.trace.steps:
                stats.count_step(record)
                stats.generation_tokens += sum(record.num_scheduled_tokens.values())
            return stats
