"""To wait for something to become true, and to see that the engine is empty."""

import time
from collections.abc import Callable
from typing import Any


def wait_for(holds: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.005)


def is_empty(llm: Any) -> bool:
    """Nobody runs or waits, and every block is free."""
    now = llm.stats()
    return bool(now.num_running == now.num_waiting == 0 and now.num_free_blocks == now.num_blocks)
