"""Each expert is on some rank, and every row travels to its expert and its answer back.

    rank 0 has e0 e1, rank 1 has e2 e3                     rank 0                     rank 1
    what each one's tokens chose                           t0: e0 e3   t1: e3 e2      t2: e1 e0
    dispatch: rows, sorted by where they go                t0 | t1 t0 t1              t2 t2 | (none)
    what each one has then                                 e0: t0 t2   e1: t2         e2: t1   e3: t0 t1
    its experts answer                                     fused_moe                  fused_moe
    combine: answers go back the way they came             t0 t1, weighted sums       t2

How many rows come is known only to those who send them, so counts travel first: one message of a few integers, then the
rows, then the answers. All ranks take part in all three, whoever has no tokens too: nobody could go on without them. So
replicas step together, and whoever has nothing to run runs nothing through every layer.

Ranks of a tensor group have the same tokens: each sends its share of them and returns zeros for the rest, which the
all-reduce behind it fills. An expert may have copies (balance.py): its rows take turns, and who has which expert may
change between two steps. Invariant: a rank's result does not depend on where the experts are. (From level 07.)"""

import torch
from torch import Tensor

from ..kernels.fused_moe import sort_by_expert
from ..models.expert_config import ExpertConfig
from ..models.experts import Experts, Names, combine, unsort
from .balance import Balance, Move, Placement, list_moves, make_plan, place_evenly
from .groups import Group
from .layers import Build, Pieces
from .portion import split


class SpreadExperts:
    """Of one layer, those that this rank has, and the way to all others."""

    def __init__(self, config: ExpertConfig, hidden_size: int, build: Build):
        self.group, self.tensor = build.experts, build.group
        self.num_experts, self.num_chosen, self.device = config.num_experts, config.num_chosen, build.device
        self.placement = place_evenly(config.num_experts, self.group.size, build.num_redundant)
        self.routes = self.make_routes()
        mine = self.placement[self.group.rank]
        self.experts = Experts(mine, hidden_size, range(config.intermediate_size), build)

    def __call__(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        """x [T, M], weights and chosen [T, k] -> [T, M], zero for the tokens that others of the tensor group send"""
        share = split(len(x), self.tensor.size)[self.tensor.rank]
        mine, out = slice(share.start, share.stop), torch.zeros_like(x)
        out[mine] = self.ask(x[mine], weights[mine], chosen[mine])
        return out

    @property
    def load(self) -> Tensor:
        """Rows that this rank's slots were given, [slots]."""
        return self.experts.load

    def idle(self) -> None:
        """Nothing to ask; others may."""
        dtype, device = self.experts.down.dtype, self.device
        nobody = torch.empty(0, self.num_chosen, dtype=torch.int64, device=device)
        self.ask(torch.empty(0, self.experts.down.shape[1], dtype=dtype, device=device), nobody.to(dtype), nobody)

    def ask(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        """Dispatch, answer others, combine: of tokens that nobody else sends."""
        num_ranks, num_slots = self.group.size, len(self.experts.slots)
        order, starts = sort_by_expert(self.routes(chosen).flatten(), num_ranks * num_slots)
        sent = starts.diff().view(num_ranks, num_slots)
        received = self.group.exchange(sent, [1] * num_ranks, [1] * num_ranks)  # [from whom, for which of our slots]
        to_each, from_each = torch.stack([sent.sum(1), received.sum(1)]).tolist()
        rows = self.group.exchange(x[order // chosen.shape[1]], to_each, from_each)
        answers = self.group.exchange(self.answer(rows, received), from_each, to_each)
        return combine(answers, order, weights)

    def answer(self, rows: Tensor, counts: Tensor) -> Tensor:
        """rows [A, M], from each rank sorted by slot, counts [ranks, slots] of them -> answers in the same order"""
        slots = torch.arange(counts.shape[1], device=rows.device).repeat(len(counts))
        order, starts = sort_by_expert(slots.repeat_interleave(counts.flatten()), counts.shape[1])
        return unsort(self.experts.answer(rows, order, starts), order)

    def make_routes(self) -> "Routes":
        return Routes(self.placement, self.num_experts, self.group.rank, self.device)

    def checkpoint(self, name: str, names: Names) -> Pieces:
        return self.experts.checkpoint(name, names)

    def rebalance(self) -> Balance:
        """Plan for the load since last time, and move there. All ranks at the same point of their work."""
        counts = self.group.all_gather(self.load, dim=0).view(self.group.size, -1).tolist()
        load = [0] * self.num_experts
        for slots, rows in zip(self.placement, counts, strict=True):
            for expert, num_rows in zip(slots, rows, strict=True):
                load[expert or 0] += num_rows  # a slot of nobody has no rows
        balance = Balance(load, self.placement, make_plan(load, self.placement))
        self.move(balance.new)
        return balance

    def move(self, new: Placement) -> None:
        moves = list_moves(self.placement, new)
        for weight in (self.experts.gate_up, self.experts.down):
            exchange_slots(weight, moves, self.group)
        self.placement = new
        self.routes = self.make_routes()
        self.experts.slots = new[self.group.rank]
        self.load.zero_()


class Routes:
    """From experts to slots, counted over all ranks. Tokens take turns among the copies of an expert, beginning with
    one or another, rank by rank: a rank with a single token would always ask the same."""

    def __init__(self, placement: Placement, num_experts: int, first: int, device: torch.device):
        everywhere = [expert for slots in placement for expert in slots]
        copies = [[slot for slot, held in enumerate(everywhere) if held == expert] for expert in range(num_experts)]
        most = max(map(len, copies))
        padded = [slots + slots[:1] * (most - len(slots)) for slots in copies]
        self.slots, self.first = torch.tensor(padded, device=device), first  # [E, most]
        self.num_copies = torch.tensor([len(slots) for slots in copies], device=device)  # [E]

    def __call__(self, experts: Tensor) -> Tensor:
        """experts [T, k] -> slots [T, k]"""
        turns = torch.arange(self.first, self.first + len(experts), device=experts.device)[:, None]
        return self.slots[experts, turns % self.num_copies[experts]]


def exchange_slots(weight: Tensor, moves: list[Move], group: Group) -> None:
    """weight [slots, ...] of this rank: what others need of it goes out, what it needs comes in."""
    outgoing = sorted((move for move in moves if move.source[0] == group.rank), key=lambda move: move.target[0])
    incoming = sorted((move for move in moves if move.target[0] == group.rank), key=lambda move: move.source[0])
    to_each = [sum(move.target[0] == rank for move in outgoing) for rank in range(group.size)]
    from_each = [sum(move.source[0] == rank for move in incoming) for rank in range(group.size)]
    rows = group.exchange(weight[[move.source[1] for move in outgoing]], to_each, from_each)
    weight[[move.target[1] for move in incoming]] = rows
