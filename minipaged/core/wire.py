"""How cores are reached: by a call, where they are in this process, or over two sockets, where each has its own.

    send(replica, command)                       never waits
    receive(timeout_s) -> [(replica, event)]     waits for the first, and takes whatever is there; with 0 it only takes

                LocalWire                              ProcessWire (processes.py)
    send        the core takes it at once              its inbox holds it until the step is over
    receive     each core that is due makes a step     whatever the cores have said meanwhile

Invariant: to whoever holds a wire there is no other difference. (From level 07.)"""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

from ..config import EngineConfig
from .loop import EngineCore
from .messages import Command, Event, Stop


class Lost(NamedTuple):
    """Something that a core said could not be read: whatever it was about."""

    error: str


class Wire(Protocol):
    """configs are complete: the engines' own, which differ by the number of blocks at most."""

    configs: list[EngineConfig]

    def send(self, replica: int, command: Command) -> None: ...
    def receive(self, timeout_s: float | None) -> list[tuple[int, Event | Lost]]: ...
    def close(self) -> None: ...


def common(configs: Sequence[EngineConfig]) -> EngineConfig:
    """What every replica can keep: the smallest pool's, for a prompt may come to any of them."""
    return replace(configs[0], num_blocks=min(config.num_blocks for config in configs))


class LocalWire:
    """Replicas that take turns in this process: what their steps raise is raised here."""

    def __init__(self, cores: list[EngineCore]):
        self.cores, self.configs = cores, [core.engine.config for core in cores]
        self.said: deque[tuple[int, Event]] = deque()

    def send(self, replica: int, command: Command) -> None:
        if isinstance(command, Stop):
            self.cores[replica].engine.shutdown()
        else:
            self.said += [(replica, event) for event in self.cores[replica].take(command)]

    def receive(self, timeout_s: float | None) -> list[tuple[int, Event | Lost]]:
        events: list[tuple[int, Event | Lost]] = list(self.said)
        self.said.clear()
        due = [] if timeout_s == 0 else [(i, core) for i, core in enumerate(self.cores) if core.is_due]
        return events + [(i, core.turn()) for i, core in due]

    def close(self) -> None:
        for replica in range(len(self.cores)):
            self.send(replica, Stop())
