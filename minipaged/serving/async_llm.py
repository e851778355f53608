"""One thread listens to the engine; every caller has a letterbox, and only the newest letter lies in it.

    generate --> tokenise (a thread) --> enter --> engine cores, each in a process of its own
        ^                                             |
        +---- letterbox <---- the listening thread <--+    text grows by what is new, and nobody waits for a reader

A reader who is slow finds the newest output, which holds all that came before; one who goes away (closes the iterator,
is cancelled) takes its request along. Invariant: a caller that goes, however it goes, leaves no request and no block
behind; an engine that dies is the end of every waiting caller, with the reason. (From level 08.)"""

import asyncio
import threading
import traceback
import weakref
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..checks import check_integer
from ..config import DEFAULT_MODEL
from ..core.counters import Counters
from ..core.entry import Told
from ..core.messages import View
from ..core.replicas import EngineDeadError, Replicas
from ..core.start import start_processes
from ..detokenizer import Detokenizer
from ..llm import Prompt, encode_prompt, make_config
from ..outputs import RequestOutput
from ..progress import say
from ..sampling_params import SamplingParams
from ..sequence import Sequence
from ..stop_strings import StopStrings
from ..trace.steps import StepRecord
from .letterbox import Feed, Letterbox

__all__ = ["AsyncLLM", "EngineDeadError", "QueueFullError", "Stats"]

LISTEN_S = 0.2  # how long the thread sleeps at most, when nothing happens, before it asks whether it may leave
FEED_SIZE = 256  # step records that a slow reader may find
Box = Letterbox[RequestOutput]


class QueueFullError(RuntimeError):
    """There is no place now; there may be later."""


@dataclass
class Stats(Counters):
    """How things stand, of all replicas together, and what has happened since the start."""

    num_running: int = 0
    num_waiting: int = 0
    num_free_blocks: int = 0
    num_blocks: int = 0


class AsyncLLM:
    """max_queue: how many choices may wait beyond those that have a seat (max_num_seqs of every replica); None: all.
    options: EngineConfig's fields. Raises ValueError or RuntimeError, in one line, if the engine does not start."""

    def __init__(
        self,
        model: str = DEFAULT_MODEL,
        *,
        max_queue: int | None = None,
        start_timeout_s: float = 600.0,
        **options: Any,
    ):
        check_integer("max_queue", max_queue, 0, optional=True)
        wire, self.vocabulary = start_processes(make_config(model=str(model), **options), start_timeout_s)
        self.replicas = Replicas(wire, self.vocabulary, partial(read_along, self.vocabulary.decode))
        self.config, self.tokenizer = self.replicas.config, self.vocabulary.tokenizer
        seats = self.config.max_num_seqs * self.config.data_parallel_size
        self.max_places = None if max_queue is None else seats + max_queue
        self.boxes: dict[int, Box] = {}  # by ticket
        self.is_draining, self.left = False, threading.Event()
        self.listener = threading.Thread(target=listen, args=(self.replicas, self.boxes, self.left), daemon=True)
        self.listener.start()
        self.stop_listening = weakref.finalize(self, hang_up, self.left, self.listener)

    async def __aenter__(self) -> "AsyncLLM":
        return self

    async def __aexit__(self, *error: object) -> None:
        await asyncio.to_thread(self.shutdown)

    def shutdown(self) -> None:
        """Leave no thread and no process behind; whoever still waits is told. May be called any number of times."""
        self.stop_listening()
        deliver(self.replicas, self.boxes, self.replicas.close())

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
        hear: Callable[[RequestOutput], None] = lambda output: None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Outputs as they come, each with all that came before; the last one is finished. Close it to abort.

        Before the first: ValueError or TypeError for what policies refuse, QueueFullError, EngineDeadError.
        hear: is told of each when it comes, in the listening thread, also of those that a slow reader never sees."""
        params = SamplingParams() if sampling_params is None else sampling_params
        token_ids = await asyncio.to_thread(self.read, prompt, params)
        ticket, box = self.enter(Box(hear), token_ids, params, request_id, priority, cache_salt)
        try:
            output = None
            while output is None or not output.finished:
                output = await box.get()
                yield output
        finally:
            self.boxes.pop(ticket, None)
            self.replicas.withdraw(ticket)  # nobody's, if it has ended

    def read(self, prompt: Prompt, params: SamplingParams) -> list[int]:
        token_ids = encode_prompt(prompt, self.tokenizer)
        self.replicas.desk.check(token_ids, params)
        return token_ids

    def enter(self, box: Box, token_ids: list[int], params: SamplingParams, *place: Any) -> tuple[int, Box]:
        """No news come in between: whoever is sent for has a letterbox."""
        with self.replicas.lock:
            self.check_place(params)
            ticket = self.replicas.enter(token_ids, params, *place).ticket
            self.boxes[ticket] = box
        return ticket, box

    def check_place(self, params: SamplingParams) -> None:
        if self.is_draining:
            raise QueueFullError("the engine takes no new requests: it is about to stop")
        num_here = sum(len(entry.choices) for entry in self.replicas.entries.values())
        if self.max_places is not None and num_here + params.n > self.max_places:
            raise QueueFullError(f"the queue is full: {num_here} of {self.max_places} places are taken")

    def abort(self, request_id: str) -> None:
        """In any state, unknown ids too: never an error. Whoever listens gets what there is, with "abort"."""
        deliver(self.replicas, self.boxes, self.replicas.abort(request_id))

    async def drain(self, timeout_s: float) -> bool:
        """Let nobody in any more, and wait for those who are here; False if some are after timeout_s."""
        self.is_draining = True
        try:
            async with asyncio.timeout(timeout_s):
                while self.replicas.entries:
                    await asyncio.sleep(0.02)
        except TimeoutError:
            return False
        return True

    @property
    def error(self) -> str | None:
        """Why it is dead; None while a replica lives."""
        return self.replicas.error

    @property
    def is_alive(self) -> bool:
        return self.error is None

    def stats(self) -> Stats:
        """As the replicas last said, and who was sent to them since."""
        with self.replicas.lock:
            now = self.replicas.occupancy._asdict()
            now["num_waiting"] += sum(replica.num_unseen for replica in self.replicas.living)
            return Stats(**vars(self.replicas.counters), **now)

    async def look(self) -> dict[int, View]:
        """Who holds which blocks, in each living replica: answered between two of its steps."""
        with self.replicas.lock:
            living, asked = [replica.index for replica in self.replicas.living], self.replicas.ask("look")
        answers = await asyncio.gather(*map(asyncio.wrap_future, asked), return_exceptions=True)
        views = {i: getattr(answer, "view", None) for i, answer in zip(living, answers, strict=True)}
        return {i: view for i, view in views.items() if view}  # who died meanwhile has none

    async def reset_prefix_cache(self) -> bool:
        """Forget all shared beginnings; False if a replica could not, for a request of its was running."""
        answers = await asyncio.gather(*map(asyncio.wrap_future, self.replicas.ask("reset")))
        return all(answer.done for answer in answers)

    async def check_integrity(self) -> None:
        """Raises AssertionError with the broken invariant's name."""
        for answer in await asyncio.gather(*map(asyncio.wrap_future, self.replicas.ask("check"))):
            assert answer.error is None, answer.error

    async def records(self) -> AsyncGenerator[StepRecord, None]:
        """Every step from now on; a slow reader misses some."""
        feed = Feed[StepRecord](FEED_SIZE)
        observers = self.replicas.ledger.observers
        observers.append(feed.put)
        try:
            while (record := await feed.get()) is not None:
                yield record
        finally:
            observers.remove(feed.put)


def read_along(decode: Detokenizer, seq: Sequence) -> None:
    """Text grows token by token, in the listening thread, instead of being decoded anew for each output."""
    if seq.stops is None and decode.tokenizer is not None:
        seq.stops = StopStrings(seq.params, decode.stream)


def listen(replicas: Replicas, boxes: dict[int, Box], left: threading.Event) -> None:
    """The listening thread, until it may leave or nobody is left to listen to."""
    try:
        while replicas.error is None and not left.is_set():
            deliver(replicas, boxes, replicas.poll(LISTEN_S))
    except Exception as error:  # whatever it is, nobody may wait for ever
        say(f"the listening thread broke:\n{traceback.format_exc()}")
        deliver(replicas, boxes, replicas.close(f"nobody listens to it any more: {type(error).__name__}: {error}"))


def deliver(replicas: Replicas, boxes: dict[int, Box], news: list[Told]) -> None:
    for ticket, output in news:
        if box := boxes.get(ticket):
            failed = replicas.error is not None and output.error is not None
            box.put(EngineDeadError(replicas.error) if failed else output)


def hang_up(left: threading.Event, listener: threading.Thread) -> None:
    left.set()
    listener.join()
