"""How long the model took, without waiting for it to be done.

    a CPU     |== forward ==|                         start and end are read where the work is called
    a GPU     |launch|      host goes on: what the sampler needs is packed meanwhile
              .......|== forward ==|                  start and end are events, stamped by the GPU when it gets there

with clock: ...                clock.seconds           of all that was measured so far; this waits, if somebody asks

Invariant: on a GPU nothing here waits until the seconds are asked for. (From level 01.)"""

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch

MOST_PENDING = 64  # pairs of events before those that are over are read


class Clock(ABC):
    """seconds: of all that ran inside so far."""

    @property
    @abstractmethod
    def seconds(self) -> float: ...

    @abstractmethod
    def __enter__(self) -> None: ...

    @abstractmethod
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None: ...


class HostClock(Clock):
    """A CPU's: whoever calls waits anyway."""

    seconds = 0.0

    def __enter__(self) -> None:
        self.start = time.perf_counter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.seconds += time.perf_counter() - self.start


class DeviceClock(Clock):
    """A GPU's; make_event makes an event that can be timed."""

    def __init__(self, make_event: Callable[[], Any]):
        self.make_event, self.read_s = make_event, 0.0
        self.pending: deque[tuple[Any, Any]] = deque()

    def __enter__(self) -> None:
        self.start = self.make_event()
        self.start.record()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        end = self.make_event()
        end.record()
        self.pending.append((self.start, end))
        while len(self.pending) > MOST_PENDING and self.pending[0][1].query():
            self.read()

    def read(self) -> None:
        """The oldest pair; events give milliseconds."""
        start, end = self.pending.popleft()
        end.synchronize()
        self.read_s += start.elapsed_time(end) / 1e3

    @property
    def seconds(self) -> float:
        while self.pending:
            self.read()
        return self.read_s


def choose_clock(device: torch.device) -> Clock:
    if device.type == "cpu":
        return HostClock()
    make_event: Any = torch.cuda.Event  # whose types torch does not tell
    return DeviceClock(lambda: make_event(enable_timing=True))
