"""What every replica does, written down as if one engine had done it.

    replica 0 said   step 7   5 running, 100 of 128 blocks free
    replica 1 said   step 4   2 running,  20 of 128 blocks free    ->  step 11, replica 1: 7 running, 120 of 256 free

A record is one replica's step; waiting, running, blocks and slots are all replicas' together, as each last said.
Invariant: records are numbered as they came, by one clock. (From level 07.)"""

from collections.abc import Callable, Sequence

from ..trace.steps import StepRecord
from .router import Replica

COUNTS = ("num_waiting", "num_running", "num_free_blocks", "num_blocks")
SLOTS = ("reserved_slots", "used_slots")


class Ledger:
    """Whoever is in observers hears of each step."""

    def __init__(self, replicas: Sequence[Replica]):
        self.replicas = replicas
        self.last = {replica: StepRecord(0) for replica in replicas}
        self.observers: list[Callable[[StepRecord], None]] = []
        self.num_steps = 0
        self.started_at: float | None = None

    def write(self, replica: Replica, own: StepRecord) -> None:
        """own: as the replica wrote it, with the moment of its beginning as t_s."""
        self.last[replica] = own
        self.started_at = own.t_s if self.started_at is None else self.started_at
        values = {**vars(own), "step": self.num_steps, "t_s": own.t_s - self.started_at, "replica": replica.index}
        record = StepRecord(**values)
        for other in self.replicas:
            if other is not replica and other.error is None:
                self.add(record, other)
        self.num_steps += 1
        for observer in list(self.observers):
            observer(record)

    def add(self, record: StepRecord, other: Replica) -> None:
        for name in COUNTS:
            setattr(record, name, getattr(record, name) + getattr(other.occupancy, name))
        if other.occupancy.num_running:  # else its last step's slots are free by now
            for name in SLOTS:
                setattr(record, name, getattr(record, name) + getattr(self.last[other], name))
