"""The front of the house: from a checked body to an answer, whole or streamed.

    body -> prepare (in a thread: text becomes tokens, whatever cannot run is refused)
         -> gate    (503 if there is no place)
         -> engine  (one request a prompt) -> tale -> shape -> JSON, or events

Headers are sent when the first words are there: until then every failure has its status. Invariant: what leaves here
has a place at the gate until its end, and is worked on while its client listens. (From level 08.)"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any, Protocol

import msgspec
from fastapi import Request
from fastapi.responses import Response

from ..config import EngineConfig
from ..core.replicas import EngineDeadError
from ..desk import FrontDesk
from ..outputs import RequestOutput
from ..sampling_params import SamplingParams
from ..trace.steps import StepRecord
from .answers import Asked, News, Tale, check, merge
from .connection import CLIENT_GONE, ClientGoneError, EventStream, while_connected
from .errors import ApiError, explain, no_model, refused
from .gate import Gate
from .metrics import Metrics, Stats, Stopwatch
from .protocol import ChatRequest, CompletionRequest
from .reading import Readers, read_chat, read_completion

DONE = b"data: [DONE]\n\n"
log = logging.getLogger("minipaged.serving")


class AnyLLM(Protocol):
    """What the server asks of AsyncLLM."""

    config: EngineConfig
    vocabulary: Any

    @property
    def is_alive(self) -> bool: ...
    def generate(
        self,
        prompt: Any,
        sampling_params: SamplingParams,
        request_id: str | None = None,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
        hear: Callable[[RequestOutput], None],
    ) -> AsyncGenerator[RequestOutput, None]: ...
    def abort(self, request_id: str) -> None: ...
    def stats(self) -> Stats: ...
    async def look(self) -> Mapping[int, Any]: ...
    def records(self) -> AsyncGenerator[StepRecord, None]: ...


class Shape(Protocol):
    """How an API writes an answer down."""

    def whole(self, news: list[News], outputs: dict[int, RequestOutput], usage: dict[str, Any]) -> dict[str, Any]: ...
    def chunks(self, news: News, output: RequestOutput) -> Iterator[dict[str, Any]]: ...
    def usage_chunk(self, usage: dict[str, Any]) -> dict[str, Any]: ...


class Frontend:
    """name: the model's, as clients know it; max_waiting: choices beyond the seats that may be here."""

    def __init__(self, llm: AnyLLM, name: str, max_waiting: int):
        self.llm, self.name = llm, name
        self.desk, self.readers = FrontDesk(llm.config, llm.vocabulary), Readers()
        self.gate = Gate(llm.config.max_num_seqs * llm.config.data_parallel_size + max_waiting)
        self.metrics = Metrics(llm.stats, name)
        self.live: set[str] = set()  # the engine's ids of whatever is under way

    def check_model(self, name: str | None) -> None:
        if name is not None and name != self.name:
            raise no_model(name, self.name)

    async def complete(self, body: CompletionRequest, request: Request) -> Response:
        return await self.while_listening(request, self.prepare(body, request, read_completion))

    async def chat(self, body: ChatRequest, request: Request) -> Response:
        return await self.while_listening(request, self.prepare(body, request, read_chat))

    async def while_listening(self, request: Request, work: Any) -> Response:
        try:
            response: Response = await while_connected(request.receive, work)
        except ClientGoneError:
            return Response(status_code=CLIENT_GONE)
        return response

    async def prepare(self, body: Any, request: Request, read: Any) -> Response:
        self.check_model(body.model)
        self.gate.check_size(body.num_prompts)  # a million prompts need not be read to be too many
        request_id = request.scope["request_id"]
        with refused(body.words):
            num_bytes = request.scope["body_bytes"]
            asked, shape = await self.readers.read(num_bytes, read, body, self.desk, request_id, self.name)
        outputs = self.outputs(asked, request_id)
        tale = Tale(asked.params.n, len(asked.prompts))
        if not body.stream:
            return await answer(outputs, tale, shape)
        events = tell(outputs, tale, shape, body.reports_usage)
        return EventStream(await anext(events), events)

    async def outputs(self, asked: Asked, request_id: str) -> AsyncGenerator[tuple[int, RequestOutput], None]:
        """What the engine says to each prompt, by the prompt's number."""
        with self.gate.enter(asked.num_choices):
            watch = Stopwatch(self.metrics, asked.num_choices)
            streams = [self.ask(asked, i, f"{request_id}-{i}", watch) for i in range(len(asked.prompts))]
            async with aclosing(merge(streams)) as merged:
                async for prompt, output in merged:
                    yield prompt, output

    async def ask(
        self, asked: Asked, prompt: int, request_id: str, watch: Stopwatch
    ) -> AsyncGenerator[RequestOutput, None]:
        options: dict[str, Any] = {"priority": asked.priority, "cache_salt": asked.cache_salt}
        options["hear"] = partial(watch.see, prompt * asked.params.n)
        self.live.add(request_id)
        try:
            async with aclosing(
                self.llm.generate(asked.prompts[prompt], asked.params, request_id, **options)
            ) as outputs:
                async for output in outputs:
                    yield output
        finally:
            self.live.discard(request_id)

    def end_all(self) -> None:
        """Whoever is still here is told so."""
        for request_id in [*self.live]:
            self.llm.abort(request_id)


async def answer(outputs: AsyncGenerator[tuple[int, RequestOutput], None], tale: Tale, shape: Shape) -> Response:
    """Everything at once."""
    latest: dict[int, RequestOutput] = {}
    async with aclosing(outputs):
        async for prompt, output in outputs:
            check(output)
            latest[prompt] = output
    return Response(await asyncio.to_thread(write_whole, latest, tale, shape), media_type="application/json")


def write_whole(outputs: dict[int, RequestOutput], tale: Tale, shape: Shape) -> bytes:
    """In a thread: thousands of tokens with twenty logprobs each are a second's work."""
    news = [one for prompt, output in outputs.items() for one in tale.go_on(prompt, output)]
    return encode(shape.whole(news, outputs, tale.usage))


async def tell(
    outputs: AsyncGenerator[tuple[int, RequestOutput], None], tale: Tale, shape: Shape, reports_usage: bool
) -> AsyncGenerator[bytes, None]:
    """Events, as they come. What fails before the first of them raises; what fails later is the last event."""
    has_begun = False
    try:
        async with aclosing(outputs):
            async for prompt, output in outputs:
                for news in tale.go_on(prompt, output):
                    for chunk in shape.chunks(news, output):
                        has_begun = True
                        yield event(chunk)
        if reports_usage:
            yield event(shape.usage_chunk(tale.usage))
        yield DONE
    except Exception as error:
        if not has_begun:
            raise
        foreseen = isinstance(error, ApiError | EngineDeadError)  # who is told so needs no traceback
        log.warning("a stream broke: %s", error, exc_info=None if foreseen else error)
        yield event(explain(error).body)


def encode(body: dict[str, Any]) -> bytes:
    return msgspec.json.encode(body)


def event(body: dict[str, Any]) -> bytes:
    return b"data: " + encode(body) + b"\n\n"
