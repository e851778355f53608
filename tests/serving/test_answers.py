"""All news of a choice join to what it said; several streams are told apart, and the first error ends them all."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipaged.detokenizer import Detokenizer
from minipaged.outputs import CompletionOutput, RequestOutput
from minipaged.serving.answers import Tale, merge
from minipaged.serving.errors import ApiError

PROMPT = [1, 2, 3]


def said(index: int, text: str, num_tokens: int, reason: str | None = None) -> CompletionOutput:
    return CompletionOutput(index, [*range(num_tokens)], reason, None, Detokenizer(None), lambda is_over: text)


def output(*choices: CompletionOutput, error: str | None = None) -> RequestOutput:
    finished = all(choice.finish_reason for choice in choices)
    return RequestOutput("x", PROMPT, list(choices), finished, num_cached_tokens=2, error=error)


@given(st.data())
def test_however_much_of_it_is_skipped_the_pieces_join_to_the_whole(data: st.DataObject) -> None:
    text = data.draw(st.text("ab�é", min_size=1, max_size=12))
    seen = [*sorted(data.draw(st.sets(st.integers(0, len(text) - 1)))), len(text)]
    tale, told, tokens, firsts = Tale(1, 1), "", list[int](), list[bool]()
    for end in seen:
        reason = "stop" if end == len(text) else None
        for news in tale.go_on(0, output(said(0, text[:end], end + 1, reason))):
            told += news.text
            tokens += news.token_ids
            firsts.append(news.is_first)
    assert told == text
    assert tokens == [*range(len(text) + 1)]
    assert firsts == [True] + [False] * (len(firsts) - 1)


def test_what_is_no_text_yet_waits_and_is_not_lost() -> None:
    tale = Tale(1, 1)
    assert [news.token_ids for news in tale.go_on(0, output(said(0, "", 1)))] == [[0]], "the first is always told"
    assert list(tale.go_on(0, output(said(0, "", 2)))) == []
    [news] = tale.go_on(0, output(said(0, "é", 3)))
    assert (news.text, news.token_ids) == ("é", [1, 2])


def test_a_choice_that_has_ended_is_told_no_more() -> None:
    tale = Tale(2, 2)
    first = output(said(0, "a", 1, "stop"), said(1, "b", 1))
    assert [news.index for news in tale.go_on(1, first)] == [2, 3]
    assert [news.index for news in tale.go_on(1, output(said(0, "a", 1, "stop"), said(1, "bc", 2, "length")))] == [3]


def test_usage_counts_a_prompt_once_and_every_token() -> None:
    tale = Tale(2, 2)
    for prompt in range(2):
        list(tale.go_on(prompt, output(said(0, "a", 4, "stop"), said(1, "b", 5, "length"))))
    assert tale.usage["prompt_tokens"] == 6
    assert tale.usage["completion_tokens"] == 18
    assert tale.usage["total_tokens"] == 24
    assert tale.usage["prompt_tokens_details"] == {"cached_tokens": 4}


@pytest.mark.parametrize(("reason", "status"), [("error", 500), ("abort", 503)])
def test_what_failed_is_no_answer(reason: str, status: int) -> None:
    with pytest.raises(ApiError) as caught:
        list(Tale(2, 1).go_on(0, output(said(0, "a", 1, reason), said(1, "a", 1), error="NaN")))
    assert caught.value.status == status


async def count(number: int, closed: list[int]) -> AsyncGenerator[int, None]:
    try:
        for i in range(number):
            await asyncio.sleep(0)
            yield i
        if number == 13:
            raise KeyError("unlucky")
    finally:
        closed.append(number)


def test_streams_are_told_apart() -> None:
    async def run() -> list[tuple[int, int]]:
        return [item async for item in merge([count(3, []), count(5, []), count(0, [])])]

    items = asyncio.run(run())
    assert [item for i, item in items if i == 0] == [0, 1, 2]
    assert [item for i, item in items if i == 1] == [0, 1, 2, 3, 4]
    assert len(items) == 8


@pytest.mark.parametrize("ends", ["by an error", "by its reader"])
def test_all_streams_are_closed_however_it_ends(ends: str) -> None:
    closed: list[int] = []

    async def run() -> None:
        merged = merge([count(13, closed), count(10**6, closed)])
        async for _ in merged:
            if ends == "by its reader":
                await merged.aclose()
                return

    if ends == "by an error":
        with pytest.raises(KeyError):
            asyncio.run(run())
    else:
        asyncio.run(run())
    assert sorted(closed) == [13, 10**6]


def test_nobody_runs_ahead_of_the_reader() -> None:
    made: list[int] = []

    async def make() -> AsyncGenerator[int, None]:
        for i in range(100):
            made.append(i)
            yield i

    async def run() -> None:
        merged: Any = merge([make(), make()])
        await anext(merged)
        for _ in range(50):
            await asyncio.sleep(0)
        await merged.aclose()

    asyncio.run(run())
    assert len(made) < 10
