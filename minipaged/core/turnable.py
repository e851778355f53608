"""What a core asks of its engine: every level's verbs, and a few that only the finished engine has.

    step, add_request, abort, ...        every level's (driver.py)
    occupancy, waiting, cached_blocks    how things stand
    num_batches, run_dummy, rebalance    for replicas that keep one pace
    check_alive                          for whoever watches while there is nothing to do

Invariant: the core knows no more of an engine than this. (From level 07.)"""

from typing import Protocol

from ..driver import AnyEngine
from ..parallel.balance import Balance
from ..sequence import Sequence
from ..trace import Occupancy


class Turnable(AnyEngine, Protocol):
    """num_batches: so many were handed to the model. run_dummy: one without a token."""

    num_batches: int

    @property
    def occupancy(self) -> Occupancy: ...
    @property
    def waiting(self) -> list[Sequence]: ...
    @property
    def cached_blocks(self) -> list[int]: ...
    def run_dummy(self) -> None: ...
    def rebalance(self) -> list[Balance]: ...
    def check_alive(self) -> None: ...
    def check_integrity(self) -> None: ...
    def reset_prefix_cache(self) -> bool: ...
    def shutdown(self) -> None: ...
