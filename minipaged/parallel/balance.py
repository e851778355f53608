"""Busy experts get copies, and all are packed so that every rank has about as much to do.

    load of 4 experts   e0 8   e1 2   e2 1   e3 1                2 ranks with 3 slots each, so 2 slots to spare

    before              rank 0 | e0 e1 .  | 10     rank 1 | e2 e3 .  | 2      balancedness 6 / 10
    copy the busiest    e0 4 + 4   e1 1 + 1   e2 1   e3 1                     no expert more often than there are ranks
    pack, large first   rank 0 | e0 e1 e2 | 6      rank 1 | e0 e3 e1 | 6      balancedness 6 / 6

Balancedness is the mean of the ranks' loads over the largest: in an exchange all wait for the busiest. Copying whoever
has the largest share and packing the largest first, onto the rank with the least, is what DeepSeek's balancer does when
it looks at all ranks as one (github.com/deepseek-ai/EPLB; arXiv 2412.19437, section 3.4). Who stays on a rank stays in
its slot, so that only newcomers are copied. Every rank makes the same plan from the same numbers, and nobody has to be
told. Invariant: every expert has a copy somewhere, and no rank has two of the same. (From level 07.)"""

import heapq
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from .portion import split

Slots = tuple[int | None, ...]  # the expert in each slot of a rank; None: nobody
Placement = tuple[Slots, ...]  # rank by rank, all with as many slots


class Move(NamedTuple):
    """An expert is copied from one rank's slot to another's."""

    expert: int
    source: tuple[int, int]
    target: tuple[int, int]


def place_evenly(num_experts: int, num_ranks: int, num_redundant: int = 0) -> Placement:
    """In order, as even as can be, nobody twice; what is redundant is free at first."""
    num_slots = -(-(num_experts + num_redundant) // num_ranks)
    return tuple(settle((None,) * num_slots, list(share)) for share in split(num_experts, num_ranks))


def make_plan(load: Sequence[float], placement: Placement) -> Placement:
    """A placement for experts with this load, in the same slots; the old one if that is no worse."""
    num_ranks, num_slots = len(placement), len(placement[0])
    ranks = pack(load, replicate(load, num_ranks, num_slots), num_ranks, num_slots)
    new = tuple(settle(before, after) for before, after in zip(placement, ranks, strict=True))
    return new if balancedness(spread(load, new)) > balancedness(spread(load, placement)) else placement


def replicate(load: Sequence[float], num_ranks: int, num_slots: int) -> list[int]:
    """How many copies each expert gets, if every slot is used."""
    copies, busiest = [1] * len(load), [(-share, expert) for expert, share in enumerate(load) if num_ranks > 1]
    heapq.heapify(busiest)
    for _ in range(num_ranks * num_slots - len(load)):
        if not busiest:
            break
        _, expert = heapq.heappop(busiest)
        copies[expert] += 1
        if copies[expert] < num_ranks:
            heapq.heappush(busiest, (-load[expert] / copies[expert], expert))
    return copies


def pack(load: Sequence[float], copies: Sequence[int], num_ranks: int, num_slots: int) -> list[list[int]]:
    """The experts of each rank. A copy that finds no rank without its like is left out."""
    ranks: list[list[int]] = [[] for _ in range(num_ranks)]
    totals = [0.0] * num_ranks
    shares = [(-load[e] / copies[e], e) for e in range(len(load)) for _ in range(copies[e])]
    for share, expert in sorted(shares):
        free = [r for r in range(num_ranks) if len(ranks[r]) < num_slots and expert not in ranks[r]]
        if free:
            rank = min(free, key=lambda r: (totals[r], len(ranks[r])))
            ranks[rank].append(expert)
            totals[rank] -= share
    return ranks


def settle(before: Slots, experts: list[int]) -> Slots:
    """Experts in slots: those that were there where they were, newcomers where there is room."""
    newcomers = iter([expert for expert in experts if expert not in before])
    return tuple(expert if expert in experts else next(newcomers, None) for expert in before)


def spread(load: Sequence[float], placement: Placement) -> list[float]:
    """The load of each rank, when copies share an expert's evenly."""
    copies = Counter(expert for slots in placement for expert in slots)
    return [sum(load[e] / copies[e] for e in slots if e is not None) for slots in placement]


def balancedness(loads: Sequence[float]) -> float:
    """From 1 / ranks, one does all, to 1, all do the same; 1 too when there is nothing to do."""
    return round(sum(loads) / len(loads) / max(loads), 9) if max(loads) else 1.0


def list_moves(old: Placement, new: Placement) -> list[Move]:
    """What has to be copied where; whoever has an expert in several places takes turns in sending it."""
    holders: dict[int, list[tuple[int, int]]] = {}
    for rank, slots in enumerate(old):
        for slot, expert in enumerate(slots):
            if expert is not None:
                holders.setdefault(expert, []).append((rank, slot))
    moves: list[Move] = []
    for rank, slots in enumerate(new):
        for slot, expert in enumerate(slots):
            if expert is not None and old[rank][slot] != expert:
                sender = holders[expert].pop(0)
                holders[expert].append(sender)
                moves.append(Move(expert, sender, (rank, slot)))
    return moves


class Balance(NamedTuple):
    """One layer's load, and what a plan made of it."""

    load: list[int]  # rows of each expert since the last plan, over all ranks
    old: Placement
    new: Placement

    @property
    def before(self) -> float:
        return balancedness(spread(self.load, self.old))

    @property
    def after(self) -> float:
        return balancedness(spread(self.load, self.new))

    @property
    def num_moved(self) -> int:
        return len(list_moves(self.old, self.new))
