"""A client times what it hears, waits for its place, and keeps its errors to itself."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from minipaged.bench.clients import Clients, Wish, make_wishes

CHUNK = 'data: {"choices": [{"text": "a"}]}\n\n'
USAGE = 'data: {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}\n\n'
GAP_S = 0.02


class Answer(httpx.AsyncByteStream):
    def __init__(self, *pieces: str):
        self.pieces = pieces

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self.pieces:
            await asyncio.sleep(GAP_S)
            yield piece.encode()


def run(handler: Any, number: int = 1, concurrency: int | None = None) -> Any:
    async def all_of_them() -> Any:
        async with httpx.AsyncClient(base_url="http://x", transport=httpx.MockTransport(handler)) as http:
            return await Clients(http, "tiny", concurrency).run([Wish("a b c", 2)] * number, [0.0] * number)

    return asyncio.run(all_of_them())


def test_moments_are_those_of_the_pieces_and_tokens_those_of_the_usage() -> None:
    [timing], wall_s = run(lambda request: httpx.Response(200, stream=Answer(CHUNK, CHUNK, USAGE, "data: [DONE]\n\n")))
    assert timing.error is None
    assert (timing.num_prompt, timing.num_output) == (3, 2)
    assert GAP_S <= timing.ttft < timing.e2e <= wall_s
    assert len(timing.moments) == 2
    assert timing.gaps[0] >= GAP_S / 2


@pytest.mark.parametrize(("answer", "words"), [
    (lambda: httpx.Response(503, text="full"), "503"), (lambda: httpx.Response(200, stream=Answer(CHUNK)), "cut"),
    (lambda: httpx.Response(200, stream=Answer('data: {"error": {"message": "dead"}}\n\n')), "dead"),
    (lambda: httpx.Response(200, stream=Answer("data: [DONE]\n\n")), "without text"),
    (lambda: httpx.Response(200, stream=Answer("data: {\n\n")), "no JSON object"),
    (lambda: httpx.Response(200, stream=Answer(CHUNK, "data: [DONE]\n\n")), "usage"),
])  # fmt: skip
def test_what_goes_wrong_is_one_clients_error(answer: Any, words: str) -> None:
    [timing], _ = run(lambda request: answer())
    assert timing.error is not None
    assert words in timing.error


def test_no_more_at_once_than_there_are_places() -> None:
    inside, most = 0, 0

    async def handler(request: httpx.Request) -> httpx.Response:
        nonlocal inside, most
        inside, most = inside + 1, max(most, inside + 1)
        await asyncio.sleep(GAP_S)
        inside -= 1
        return httpx.Response(200, text=CHUNK + USAGE + "data: [DONE]\n\n")

    timings, _ = run(handler, number=6, concurrency=2)
    assert most == 2
    assert [timing.error for timing in timings] == [None] * 6
    assert max(timing.sent for timing in timings) >= 2 * GAP_S
    assert max(timing.ttft for timing in timings) >= 3 * GAP_S, "who waits for a place waits for an answer"


def test_wishes_share_a_beginning_and_differ_behind_it() -> None:
    wishes = make_wishes(3, input_len=20, output_len=4, prefix_len=10, seed=1)
    words = [wish.prompt.split() for wish in wishes]
    assert {len(one) for one in words} == {30}
    assert words[0][:10] == words[1][:10] == words[2][:10]
    assert words[0][10:] != words[1][10:]
    assert wishes == make_wishes(3, input_len=20, output_len=4, prefix_len=10, seed=1)
