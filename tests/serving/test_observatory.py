"""The page shows what the engine does while it does it, asks nobody else for anything, and can be turned off."""

import asyncio
import json
import re
import threading
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx

from minipaged.serving.gate import Gate
from minipaged.serving.observatory import MAX_STEPS, MAX_WATCHERS, PAGE, Watchers, draw_blocks, summary
from minipaged.trace.steps import StepRecord

from .conftest import thread_llm
from .running import Running, running
from .watching import is_empty, wait_for

LONG = {"prompt": "Once upon a time", "max_tokens": 150, "temperature": 0, "ignore_eos": True, "n": 2}


def read_events(lines: Any) -> Any:
    name = ""
    for line in lines:
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))


def test_a_request_appears_its_blocks_grow_and_go(served: Running) -> None:
    wait_for(lambda: is_empty(served.llm))
    with httpx.stream("GET", served.url + "/observatory/events", timeout=20) as answer:
        events = read_events(answer.iter_lines())
        name, hello = next(events)
        assert (name, hello["model"], hello["num_blocks"]) == ("hello", "tiny", 64)
        _, before = next(events)
        assert before["requests"] == []
        asking = threading.Thread(target=httpx.post, args=(served.url + "/v1/completions",), kwargs={"json": LONG})
        asking.start()
        looks = []
        for _, look in events:
            looks.append(look)
            num_finished = sum(step["finished"] for look in looks for step in look["steps"])
            if num_finished == 2 and not look["requests"]:  # a look may be a step ahead of the steps told with it
                break
        asking.join()
    busiest = max(looks, key=lambda look: len(look["requests"]))
    assert [request["state"] for request in busiest["requests"]] == ["running"] * 2
    assert set(looks[-1]["blocks"]) <= {".", "c"}
    assert any("u" in look["blocks"] for look in looks)
    steps = [step for look in looks for step in look["steps"]]
    assert sum(step["decode"] for step in steps) >= 150
    assert sum(step["finished"] for step in steps) == 2
    assert looks[-1]["ttft_s"] > 0


def test_whoever_stops_watching_is_forgotten(served: Running) -> None:
    observers = served.llm.observers
    wait_for(lambda: not observers)
    with httpx.stream("GET", served.url + "/observatory/events", timeout=20) as answer:
        lines = answer.iter_lines()  # kept: a reader that is thrown away closes its connection
        next(lines)
        wait_for(lambda: len(observers) == 1)
    wait_for(lambda: not observers)


def test_there_is_an_end_to_watchers(served: Running) -> None:
    clients = [httpx.Client(base_url=served.url) for _ in range(MAX_WATCHERS)]
    try:
        for client in clients:
            client.send(client.build_request("GET", "/observatory/events"), stream=True)
        assert httpx.get(served.url + "/observatory/events").status_code == 503
    finally:
        for client in clients:
            client.close()
    wait_for(lambda: not served.llm.observers)


def test_a_watcher_who_stands_still_finds_no_more_than_the_newest_steps() -> None:
    """It reads nothing for an hour; what it has missed is not kept for it."""

    async def records() -> AsyncGenerator[StepRecord, None]:
        for number in range(3 * MAX_STEPS):
            yield StepRecord(number, num_scheduled_tokens={"a": 1})
            if number % 100 == 0:
                await asyncio.sleep(0)

    async def look() -> list[Any]:
        return [SimpleNamespace(num_blocks=1, holders=[], waiting=[], cached_blocks=[])]

    async def stand_still() -> list[int]:
        llm = SimpleNamespace(is_alive=True, look=look, records=records)
        front: Any = SimpleNamespace(llm=llm, gate=Gate(1), metrics=SimpleNamespace(last_ttft_s=None))
        async with aclosing(Watchers(front).looks()) as looks:
            await anext(looks)
            for _ in range(100):
                await asyncio.sleep(0)
            return [step["step"] for step in (await anext(looks))["steps"]]

    assert asyncio.run(stand_still()) == [*range(2 * MAX_STEPS, 3 * MAX_STEPS)]


def test_the_page_is_one_file_that_asks_no_other_machine(served: Running) -> None:
    answer = httpx.get(served.url + "/")
    assert answer.headers["content-type"].startswith("text/html")
    assert "connect-src 'self'" in answer.headers["content-security-policy"]
    assert not re.findall(r"(?:https?:)?//[a-z]", re.sub(r"^\s*//.*$", "", answer.text, flags=re.M).replace("// ", ""))


def test_the_page_names_only_what_it_has() -> None:
    """Every element that the script looks for is there; labels and descriptions point at something."""
    page = PAGE.read_text(encoding="utf-8")
    ids = set(re.findall(r'\bid="([^"]+)"', page))
    assert set(re.findall(r'\$\("([a-z-]+)"\)', page)) <= ids
    assert set(re.findall(r'(?:aria-labelledby|for)="([^"]+)"', page)) <= ids
    assert set(re.findall(r"var\(--([a-z]+)\)", page)) | set(re.findall(r'color\("([a-z]+)"\)', page)) <= set(
        re.findall(r"--([a-z]+):", page)
    )
    assert page.count("prefers-color-scheme: dark") == 1
    assert '<html lang="en">' in page
    assert "width=device-width" in page


def test_it_can_be_turned_off(folder: Path) -> None:
    with running(lambda: thread_llm(folder), observatory=False) as server:
        assert httpx.get(server.url + "/").status_code == 404
        assert httpx.get(server.url + "/observatory/events").status_code == 404


def test_shared_blocks_are_told_from_those_of_one() -> None:
    holders = [SimpleNamespace(request_id="a", block_table=[0, 1]), SimpleNamespace(request_id="b", block_table=[0, 3])]
    view: Any = SimpleNamespace(num_blocks=6, holders=holders, waiting=[], cached_blocks=[4])
    assert draw_blocks(view) == "su.uc."


def test_a_step_in_numbers() -> None:
    step = StepRecord(3, num_scheduled_tokens={"a": 64, "b": 1, "c": 4, "d": 3}, draft_tokens={"d": 2})
    step.accepted_tokens = {"d": 1}
    found = summary(step, Counter({"a": 1, "c": 4}))
    assert (found["prefill"], found["decode"], found["drafts"], found["accepted"]) == (64, 1 + 4 + 1, 2, 1)
