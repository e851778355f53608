"""Replicas that share their experts are told when to run: all at once, as long as any of them has work.

    wave      a request comes  ->  Turn to all, reports from all, Turn to all, ...  ->  nobody is left: all sleep

Where every replica keeps its own pace nobody conducts. Invariant: between two turns every replica has said that it is
done with the first; whoever is missing is missed by all, so they end together. (From level 07.)"""

from collections.abc import Mapping
from typing import Any, Protocol

from ..config import EngineConfig
from .messages import Turn
from .router import Replica
from .wire import Wire


class Orchestra(Protocol):
    """Those who are conducted. entries: the requests that are on their way."""

    wire: Wire

    @property
    def entries(self) -> Mapping[int, Any]: ...
    @property
    def living(self) -> list[Replica]: ...


class NoConductor:
    def conduct(self, orchestra: Orchestra) -> None:
        """They know when to run."""

    def bury_with(self, replica: Replica, orchestra: Orchestra) -> list[Replica]:
        return [replica]


class Conductor:
    def __init__(self) -> None:
        self.num_turns = 0

    def conduct(self, orchestra: Orchestra) -> None:
        living = orchestra.living
        if orchestra.entries and all(replica.num_turns == self.num_turns for replica in living):
            self.num_turns += 1
            for replica in living:
                orchestra.wire.send(replica.index, Turn())

    def bury_with(self, replica: Replica, orchestra: Orchestra) -> list[Replica]:
        """The others would wait for its experts for ever."""
        orchestra.wire.close()
        return orchestra.living


def make_conductor(config: EngineConfig) -> NoConductor | Conductor:
    spread = config.enable_expert_parallel and config.data_parallel_size > 1
    return Conductor() if spread else NoConductor()
