"""Replicas run at their own pace, unless a forward needs all of them: then all run, or none does.

    experts spread over two replicas; only replica 0 has requests

    Turn           1      2      3      4
    replica 0      B      B      B      B        -> all sleep
    replica 1      dummy  dummy  dummy  dummy    no token: its experts answer those of others

Invariant: whoever keeps the common pace runs exactly one batch for each turn, so that all have run equally many; asked
of the engine's batches, not of its requests: a step that has work may still launch nothing. (From level 07.)"""

from typing import Protocol

from ..config import EngineConfig
from ..outputs import RequestOutput
from .turnable import Turnable


class Pace(Protocol):
    def is_due(self, engine: Turnable) -> bool: ...
    def owe(self) -> None: ...
    def turn(self, engine: Turnable) -> list[RequestOutput]: ...


class OwnPace:
    """As long as there is something to do."""

    def is_due(self, engine: Turnable) -> bool:
        return engine.has_unfinished_requests()

    def owe(self) -> None:
        """Nobody waits for this one."""

    def turn(self, engine: Turnable) -> list[RequestOutput]:
        return engine.step()


class CommonPace:
    """Whenever all run."""

    def __init__(self) -> None:
        self.num_owed = 0

    def is_due(self, engine: Turnable) -> bool:
        return self.num_owed > 0

    def owe(self) -> None:
        self.num_owed += 1

    def turn(self, engine: Turnable) -> list[RequestOutput]:
        self.num_owed -= 1
        num_batches = engine.num_batches
        outputs = engine.step() if engine.has_unfinished_requests() else []
        if engine.num_batches == num_batches:
            engine.run_dummy()
        return outputs


def make_pace(config: EngineConfig) -> Pace:
    return CommonPace() if config.shares_experts else OwnPace()
