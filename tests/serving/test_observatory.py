"""The page shows what the engine does while it does it, asks nobody else for anything, and can be turned off."""

import asyncio
import json
import re
import threading
from collections import Counter, deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx

from minipaged.serving.gate import Gate
from minipaged.serving.observatory import (
    FACTS,
    MAX_STEPS,
    MAX_UNREAD,
    MAX_WATCHERS,
    PAGE,
    Watchers,
    draw_blocks,
    event,
    summary,
)
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


class Still:
    """An engine in which many steps are made between two looks. replicas: whose views there are, look by look."""

    config = SimpleNamespace(**dict.fromkeys(FACTS, 1))

    def __init__(self, *replicas: list[int]):
        self.replicas, self.num_looks, self.is_alive = deque(replicas), 0, True

    async def records(self) -> AsyncGenerator[StepRecord, None]:
        for number in range(3 * MAX_STEPS):
            yield StepRecord(number, num_scheduled_tokens={"a": 1}, replica=1)
            if number % 100 == 0:
                await asyncio.sleep(0)

    async def look(self) -> dict[int, Any]:
        self.num_looks += 1
        living = self.replicas.popleft() if len(self.replicas) > 1 else self.replicas[0]
        self.is_alive = bool(living)
        return {i: SimpleNamespace(num_blocks=1, holders=[], waiting=[], cached_blocks=[]) for i in living}


def watch(llm: Still) -> Watchers:
    return Watchers(SimpleNamespace(llm=llm, gate=Gate(1), name="m", metrics=SimpleNamespace(last_ttft_s=None)))  # type: ignore[arg-type]


def told(events: list[bytes]) -> list[tuple[str, Any]]:
    return list(read_events(b"".join(events).decode().splitlines()))


def test_a_watcher_who_stands_still_finds_no_more_than_the_newest() -> None:
    """It reads nothing for an hour; neither steps nor looks that it has missed are kept for it."""

    async def stand_still() -> tuple[list[int], list[str]]:
        watchers = watch(Still([1]))
        async with aclosing(watchers.looks()) as looks:
            await anext(looks)
            for _ in range(100):
                await asyncio.sleep(0)
            steps = [step["step"] for step in (await anext(looks))["steps"]]
        async with aclosing(watchers.watch()) as watching:
            await anext(watching)
            for number in range(3 * MAX_UNREAD):
                watchers.tell(event(str(number), {}))
            return steps, [name for name, _ in told([await anext(watching) for _ in range(MAX_UNREAD)])]

    steps, names = asyncio.run(stand_still())
    assert steps == [*range(2 * MAX_STEPS, 3 * MAX_STEPS)]
    assert names == [str(number) for number in range(2 * MAX_UNREAD, 3 * MAX_UNREAD)]


def test_the_engine_is_asked_once_for_all_and_who_comes_later_is_shown_how_things_stand() -> None:
    async def come_and_go() -> tuple[int, list[Any], bool]:
        llm = Still([0])
        watchers = watch(llm)
        first, late = watchers.watch(), watchers.watch()
        for _ in range(2):
            await anext(first)
        shown = told([await anext(late), await anext(late)])
        num_looks = llm.num_looks
        await first.aclose()
        await late.aclose()
        await asyncio.sleep(0)
        return num_looks, shown, watchers.looking is None

    num_looks, shown, is_over = asyncio.run(come_and_go())
    assert [name for name, _ in shown] == ["hello", "look"]
    assert (num_looks, is_over) == (1, True)


def test_a_replica_keeps_its_number_when_another_has_died_and_the_end_is_told() -> None:
    async def to_the_end() -> list[Any]:
        return told([one async for one in watch(Still([0, 1], [1], [])).watch()])

    _, *looks, (name, last) = asyncio.run(to_the_end())
    assert [(look["replica"], look["living"]) for _, look in looks][-1] == (1, [1])
    assert {look["replica"] for _, look in looks if look["steps"]} == {1}
    assert (name, last) == ("ended", {"reason": "the engine has died"})


def test_the_page_is_one_file_that_asks_no_other_machine(served: Running) -> None:
    answer = httpx.get(served.url + "/")
    assert answer.headers["content-type"].startswith("text/html")
    for rule in ("connect-src 'self'", "frame-ancestors 'none'"):
        assert rule in answer.headers["content-security-policy"]
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
