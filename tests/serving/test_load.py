"""A crowd comes and goes, a third of it rude: afterwards the server is as if nobody had been there."""

import asyncio
import threading
import time

import httpx

from .load import PATH, Crowd, is_calm
from .running import Running
from .watching import is_empty, wait_for


def test_a_crowd_leaves_nothing_behind(served: Running) -> None:
    crowd = Crowd(served.url, num_clients=100, seconds=3, seed=1)
    asyncio.run(crowd.run())
    assert crowd.failures == []
    assert {name.split()[0] for name in crowd.seen} >= {"patient", "streaming", "leaver", "slow", "rude", "babble"}
    wait_for(lambda: is_empty(served.llm))
    assert served.front.gate.num_inside == 0
    assert served.front.live == set()
    assert is_calm(served.url)
    served.llm.engine.check_integrity()
    start = time.monotonic()
    assert httpx.post(served.url + PATH, json={"prompt": "a", "max_tokens": 1}).status_code == 200
    assert time.monotonic() - start < 10  # however busy the machine


def test_health_is_told_while_long_prompts_are_read(served: Running) -> None:
    """With the engine in a process of its own this is below 50 ms (test_server.py); here it shares ours."""
    asking = [
        threading.Thread(
            target=httpx.post,
            args=(served.url + PATH,),
            kwargs={"json": {"prompt": "y" * 240, "max_tokens": 1, "n": 16}, "timeout": 60},
        )
        for _ in range(4)
    ]
    for thread in asking:
        thread.start()
    start = time.monotonic()
    assert httpx.get(served.url + "/health").status_code == 200
    assert time.monotonic() - start < 10  # however busy the machine
    for thread in asking:
        thread.join()
    wait_for(lambda: is_empty(served.llm))
