"""Whoever comes in is counted; a full house says so at once, and a closing one lets its guests finish."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from minipaged.serving.errors import ApiError
from minipaged.serving.gate import Gate

from .conftest import thread_llm
from .running import running
from .watching import wait_for

BODY = {"prompt": "a", "max_tokens": 3, "ignore_eos": True}


def test_who_came_in_goes_out_also_when_it_raises() -> None:
    gate = Gate(4)
    with suppress(KeyError), gate.enter(4):
        assert gate.num_inside == 4
        raise KeyError
    assert gate.num_inside == 0
    assert gate.empty.is_set()


def test_a_full_house_says_when_to_come_back() -> None:
    gate = Gate(4)
    with gate.enter(3):
        gate.check(1)
        with pytest.raises(ApiError) as full:
            gate.check(2)
    assert full.value.status == 503
    assert full.value.headers is not None
    assert int(full.value.headers["Retry-After"]) > 0


def test_what_never_fits_is_the_clients_fault() -> None:
    with pytest.raises(ApiError) as refused:
        Gate(4).check(5)
    assert refused.value.status == 400


def test_draining_waits_for_those_inside_and_lets_nobody_in() -> None:
    async def run() -> tuple[bool, bool]:
        gate = Gate(4)
        with gate.enter(1):
            in_time = await gate.drain(0.01)
            with pytest.raises(ApiError):
                gate.check(1)
        return in_time, await gate.drain(0.01)

    assert asyncio.run(run()) == (False, True)


def test_the_queue_has_an_end_over_http(folder: Path) -> None:
    with running(lambda: thread_llm(folder, max_num_seqs=2), max_waiting=1) as server, ThreadPoolExecutor(4) as pool:
        server.llm.pause()
        accepted = [pool.submit(httpx.post, server.url + "/v1/completions", json=BODY, timeout=30) for _ in range(3)]
        wait_for(lambda: server.front.gate.num_inside == 3)
        refused = httpx.post(server.url + "/v1/completions", json=BODY)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "overloaded")
        assert int(refused.headers["retry-after"]) > 0
        assert httpx.get(server.url + "/health").status_code == 200, "busy is not ill"
        never = httpx.post(server.url + "/v1/completions", json={**BODY, "n": 4})
        assert never.status_code == 400
        server.llm.go_on()
        assert [future.result().status_code for future in accepted] == [200] * 3
