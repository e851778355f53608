"""An order is a key: the smallest is served first, the largest gives way first.

    fcfs        0 1 2 3                    priority    (0, 2) (0, 7) (1, 3)       smaller is more urgent
                ^ next   ^ gives way

Invariant: sorted by key, always. Arrival is part of every key and never changes; the choices of a request have it in
common and are told apart by their index. So keys are unique and a preempted sequence comes back to its own place, which
under fcfs is the head. (From level 02; `priority` from level 03.)"""

from bisect import insort
from collections.abc import Callable

from .sequence import Sequence

ORDERS: dict[str, Callable[[Sequence], tuple[int, ...]]] = {
    "fcfs": lambda seq: (seq.arrival, seq.choice),
    "priority": lambda seq: (seq.priority, seq.arrival, seq.choice),
}


class RequestQueue(list[Sequence]):
    """A list kept in the order of `policy`: "fcfs" or "priority"."""

    def __init__(self, policy: str):
        super().__init__()
        self.key = ORDERS[policy]

    def push(self, seq: Sequence) -> None:
        insort(self, seq, key=self.key)
