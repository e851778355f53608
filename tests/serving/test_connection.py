"""A client that goes takes its request and its blocks with it, wherever they are."""

import asyncio
import socket
import time
from typing import Any

import httpx
import pytest

from minipaged.serving.connection import ClientGoneError, while_connected

from .running import Running
from .watching import is_empty, wait_for

LONG = {"prompt": "Once upon a time", "max_tokens": 200, "temperature": 0, "ignore_eos": True}


def send(url: str, body: bytes) -> socket.socket:
    """Ask, and leave the answer unread."""
    host, port = url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)))
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    connection.sendall(head.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return connection


def encode(**body: Any) -> bytes:
    return httpx.Request("POST", "http://x", json={**LONG, **body}).content


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_hangs_up_while_it_is_served_frees_its_blocks(served: Running, stream: bool) -> None:
    served.llm.pause()
    connection = send(served.url, encode(stream=stream))
    wait_for(lambda: served.llm.stats().num_waiting == 1)
    served.llm.go_on()
    wait_for(lambda: served.llm.stats().num_running == 1)
    served.llm.pause()
    connection.close()
    start = len(served.llm.engine.trace.steps)
    wait_for(lambda: is_empty(served.llm))  # between two steps: none has to be made for it
    assert served.front.gate.num_inside == 0
    assert len(served.llm.engine.trace.steps) <= start + 1, "one may have been under way"
    served.llm.go_on()


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_hangs_up_in_the_queue_never_runs(served: Running, stream: bool) -> None:
    served.llm.pause()
    connection = send(served.url, encode(stream=stream, n=3))
    wait_for(lambda: served.llm.stats().num_waiting == 3)
    connection.close()
    wait_for(lambda: is_empty(served.llm))
    steps = len(served.llm.engine.trace.steps)
    served.llm.go_on()
    time.sleep(0.02)
    assert len(served.llm.engine.trace.steps) == steps
    assert served.front.gate.num_inside == 0


def test_a_client_that_closes_a_stream_after_its_first_chunk(served: Running) -> None:
    with httpx.Client(base_url=served.url) as client:
        for prompts in ("a", ["a", "b", "c"]):
            with client.stream("POST", "/v1/completions", json={**LONG, "prompt": prompts, "stream": True}) as answer:
                next(answer.iter_lines())
            wait_for(lambda: is_empty(served.llm))


def test_a_slow_reader_holds_nobody_up_and_nothing_piles_up(served: Running) -> None:
    """It reads nothing at all; its answer is long over while it still has most of it to get."""
    slow = send(served.url, encode(stream=True, n=16, logprobs=20))
    wait_for(lambda: served.front.gate.num_inside == 16)
    answer = httpx.post(served.url + "/v1/completions", json={**LONG, "max_tokens": 5}, timeout=20)
    assert answer.status_code == 200
    wait_for(lambda: is_empty(served.llm), 30)
    assert served.front.gate.num_inside in (0, 16), "it waits for its reader, not in the engine"
    slow.close()
    wait_for(lambda: served.front.gate.num_inside == 0)


def test_work_ends_with_the_client() -> None:
    done: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            done.append("cleaned up")

    async def leave() -> dict[str, str]:
        await asyncio.sleep(0)
        return {"type": "http.disconnect"}

    with pytest.raises(ClientGoneError):
        asyncio.run(while_connected(leave, work()))  # type: ignore[arg-type]
    assert done == ["cleaned up"]


def test_work_that_is_done_is_returned_and_what_it_raises_is_raised() -> None:
    async def stay() -> dict[str, str]:
        await asyncio.sleep(60)
        raise AssertionError("nobody listens any more")

    async def work() -> int:
        return 3

    async def fail() -> int:
        raise KeyError("x")

    assert asyncio.run(while_connected(stay, work())) == 3  # type: ignore[arg-type]
    with pytest.raises(KeyError):
        asyncio.run(while_connected(stay, fail()))  # type: ignore[arg-type]
