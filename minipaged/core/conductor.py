"""Replicas that share their experts are told when to run: all at once, as long as any of them has work.

    wave      a request comes  ->  Turn to all, reports from all, Turn to all, ...  ->  nobody is left: all sleep
    between   if asked for, experts move to where the last wave would have wanted them

Where every replica keeps its own pace nobody conducts. Invariant: between two turns every replica has said that it is
done with the first; whoever is missing is missed by all, so they end together. (From level 07.)"""

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, Protocol

from ..config import EngineConfig
from .messages import Answer, Question, Turn
from .router import Replica
from .wire import Wire


class Orchestra(Protocol):
    """Those who are conducted. entries: the requests that are on their way."""

    wire: Wire

    @property
    def entries(self) -> Mapping[int, Any]: ...
    @property
    def living(self) -> list[Replica]: ...
    def ask(self, what: Question) -> list[Future[Answer]]: ...


class NoConductor:
    def conduct(self, orchestra: Orchestra) -> None:
        """They know when to run."""

    def is_wanted(self, orchestra: Orchestra) -> bool:
        """Nobody waits for a turn."""
        return False

    def is_at_rest(self, orchestra: Orchestra) -> bool:
        """There are no turns."""
        return True

    def bury_with(self, replica: Replica, orchestra: Orchestra) -> list[Replica]:
        return [replica]


class Conductor:
    def __init__(self, moves_experts: bool) -> None:
        self.moves_experts, self.num_turns, self.num_planned = moves_experts, 0, 0

    def conduct(self, orchestra: Orchestra) -> None:
        if not self.is_between_turns(orchestra):
            return
        if self.is_wanted(orchestra):
            self.num_turns += 1
            for replica in orchestra.living:
                orchestra.wire.send(replica.index, Turn())
        elif self.moves_experts and self.num_planned < self.num_turns:
            self.num_planned = self.num_turns
            orchestra.ask("rebalance")

    def is_wanted(self, orchestra: Orchestra) -> bool:
        """By a request, or by one that has left while it was in flight: it keeps its blocks until it has landed."""
        return bool(orchestra.entries) or any(any(replica.occupancy[:2]) for replica in orchestra.living)

    def is_at_rest(self, orchestra: Orchestra) -> bool:
        return self.is_between_turns(orchestra) and not self.is_wanted(orchestra)

    def is_between_turns(self, orchestra: Orchestra) -> bool:
        return all(replica.num_turns == self.num_turns for replica in orchestra.living)

    def bury_with(self, replica: Replica, orchestra: Orchestra) -> list[Replica]:
        """The others would wait for its experts for ever."""
        orchestra.wire.close()
        return orchestra.living


def make_conductor(config: EngineConfig) -> NoConductor | Conductor:
    return Conductor(config.enable_eplb) if config.shares_experts else NoConductor()
