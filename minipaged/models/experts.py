"""The experts that a rank has: their matrices, what they say, and how much each was asked.

    chosen [T, k] of E      -> rows, sorted by expert -> fused_moe -> answers, back in order -> weighted sum [T, M]

Alone, a rank has all experts; in a tensor group it has a share of every expert's features, as of any MLP's, and what it
returns is a summand. `load` counts rows by expert: what a plan is made from (parallel/balance.py). Invariant: an answer
depends on its row alone. (From level 07.)"""

import torch
from torch import Tensor

from ..kernels.fused_moe import sort_by_expert
from ..parallel.balance import Balance, Slots
from ..parallel.layers import Build, Piece, Pieces

Names = tuple[str, str, str]  # of gate, up and down in a checkpoint


class Experts:
    """`slots[i]` is the expert whose matrices lie at i; None: nobody's yet."""

    def __init__(self, slots: Slots, hidden_size: int, features: range, build: Build):
        self.slots, self.features, self.fused_moe = slots, features, build.ops.fused_moe
        self.gate_up = build.empty(len(slots), 2 * len(features), hidden_size)  # [E, 2 F, M]
        self.down = build.empty(len(slots), hidden_size, len(features))  # [E, M, F]
        self.load = torch.zeros(len(slots), dtype=torch.int64, device=build.device)

    def __call__(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        """x [T, M], weights and chosen [T, k] -> [T, M]"""
        order, starts = sort_by_expert(chosen.flatten(), len(self.slots))
        return combine(self.answer(x, order // chosen.shape[1], starts), order, weights)

    def answer(self, x: Tensor, sources: Tensor, starts: Tensor) -> Tensor:
        """x [T, M], sources [A] sorted by slot, starts [E + 1] -> what each row's expert says, [A, M]"""
        self.load += starts.diff()
        return self.fused_moe(x, self.gate_up, self.down, sources, starts)

    def idle(self) -> None:
        """A step without a token: all experts are here, nobody waits for them."""

    def rebalance(self) -> Balance:
        """All are here: nothing to move. What they were asked is told, and counted anew."""
        load = self.load.tolist()
        self.load.zero_()
        return Balance(load, (self.slots,), (self.slots,))

    def checkpoint(self, name: str, names: Names) -> Pieces:
        inside, rows = slice(self.features.start, self.features.stop), len(self.features)
        pieces: Pieces = {}
        for slot, expert in enumerate(self.slots):
            if expert is not None:
                gate, up, down = (f"{name}.{expert}.{part}.weight" for part in names)
                pieces[gate] = Piece(self.gate_up[slot, :rows], (inside,))
                pieces[up] = Piece(self.gate_up[slot, rows:], (inside,))
                pieces[down] = Piece(self.down[slot], (slice(None), inside))
        return pieces


def combine(answers: Tensor, order: Tensor, weights: Tensor) -> Tensor:
    """answers [A, M] in this order of the rows, weights [T, k] -> each token's weighted sum [T, M]"""
    rows = unsort(answers, order).view(*weights.shape, answers.shape[1])  # [T, k, M]
    return torch.bmm(weights.to(rows.dtype)[:, None], rows)[:, 0]


def unsort(x: Tensor, order: Tensor) -> Tensor:
    """x [A, M] sorted by order -> the rows as they were"""
    rows = torch.empty_like(x)
    rows[order] = x
    return rows
