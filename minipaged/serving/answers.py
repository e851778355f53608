"""One HTTP request is one or more requests to the engine, and what they have said is told as it comes.

    prompts   A B            outputs   A: [a0 a1]   B: [b0 b1]        n = 2
    choices   0 1 2 3                   0  1         2  3             told by these numbers

    output    "The cat sat"      cumulative, as the engine gives it; some may have been skipped
    told      "The cat"          what the client has
    news             " sat"      what it gets next

Invariant: all news of a choice join to its text and its tokens; a request that failed is told as an error, never as an
answer that happens to be short. (From level 08.)"""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ..outputs import CompletionOutput, Logprob, RequestOutput, describe
from ..sampling_params import SamplingParams
from .errors import closing, failed

T = TypeVar("T")


@dataclass(frozen=True)
class Asked:
    """What an HTTP request asks of the engine: the same of every prompt."""

    prompts: list[list[int]]
    params: SamplingParams
    priority: int = 0
    cache_salt: str | None = None

    @property
    def num_choices(self) -> int:
        return len(self.prompts) * self.params.n


@dataclass(frozen=True)
class News:
    """What a client does not know yet of one choice. is_first: it knows nothing of it."""

    index: int
    text: str
    token_ids: list[int]
    logprobs: list[dict[int, Logprob]] | None
    finish_reason: str | None
    stop_reason: int | str | None
    is_first: bool

    @property
    def is_worth_telling(self) -> bool:
        """Tokens that are no text yet, half a character or the beginning of a stop string, can wait."""
        return bool(self.text or self.finish_reason or self.is_first or (self.token_ids and self.logprobs))


@dataclass
class Told:
    """How much of one choice the client has."""

    index: int
    num_characters: int = 0
    num_tokens: int = 0
    is_new: bool = True
    finished: bool = False

    def news(self, said: CompletionOutput) -> News:
        fresh = None if said.scores is None else said.scores[self.num_tokens :]  # told ones are not described again
        scores = None if fresh is None else [describe(one, said.decode) for one in fresh]
        text, tokens = said.text[self.num_characters :], said.token_ids[self.num_tokens :]
        return News(self.index, text, tokens, scores, said.finish_reason, said.stop_reason, self.is_new)

    def learn(self, news: News) -> None:
        self.num_characters += len(news.text)
        self.num_tokens += len(news.token_ids)
        self.is_new, self.finished = False, news.finish_reason is not None


@dataclass
class Tale:
    """All choices of an HTTP request, as far as they have been told."""

    n: int
    num_prompts: int
    told: list[Told] = field(init=False)
    latest: dict[int, RequestOutput] = field(default_factory=dict)  # prompt number -> its last output

    def __post_init__(self) -> None:
        self.told = [Told(i) for i in range(self.n * self.num_prompts)]

    def go_on(self, prompt: int, output: RequestOutput) -> Iterator[News]:
        """The news in an output. Raises ApiError for one that failed."""
        check(output)
        self.latest[prompt] = output
        for said in output.outputs:
            told = self.told[prompt * self.n + said.index]
            if told.finished or not said.token_ids:
                continue
            if (news := told.news(said)).is_worth_telling:
                told.learn(news)
                yield news

    @property
    def usage(self) -> dict[str, Any]:
        """A prompt counts once for all its choices; tokens count, EOS included."""
        outputs = self.latest.values()
        num_prompt = sum(len(output.prompt_token_ids) for output in outputs)
        num_said = sum(len(said.token_ids) for output in outputs for said in output.outputs)
        return {
            "prompt_tokens": num_prompt,
            "completion_tokens": num_said,
            "total_tokens": num_prompt + num_said,
            "prompt_tokens_details": {"cached_tokens": sum(output.num_cached_tokens for output in outputs)},
        }


def check(output: RequestOutput) -> None:
    reasons = {said.finish_reason for said in output.outputs}
    if "error" in reasons:
        raise failed(output.error)
    if "abort" in reasons:
        raise closing("the request was ended: the server is shutting down")


async def merge(streams: list[AsyncGenerator[T, None]]) -> AsyncGenerator[tuple[int, T], None]:
    """What several streams yield, as it comes, each with its stream's number. The first error ends them all."""
    if len(streams) == 1:  # no task and no queue for what need not be merged: this is done for every token
        async with aclosing(streams[0]):
            async for only in streams[0]:
                yield 0, only
        return
    queue: asyncio.Queue[tuple[int, T | Exception | None]] = asyncio.Queue(maxsize=1)  # nobody runs ahead of the reader
    tasks = [asyncio.create_task(pump(i, stream, queue)) for i, stream in enumerate(streams)]
    try:
        num_open = len(tasks)
        while num_open:
            i, item = await queue.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                num_open -= 1
            else:
                yield i, item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def pump(
    i: int, stream: AsyncGenerator[T, None], queue: "asyncio.Queue[tuple[int, T | Exception | None]]"
) -> None:
    try:
        async with aclosing(stream):
            async for item in stream:
                await queue.put((i, item))
        await queue.put((i, None))
    except Exception as error:
        await queue.put((i, error))
