"""An MLP works token by token: one half of its features opens or shuts the other.

    x [T, M] -> gate_up_proj -> [ gate | up ] [T, 2 F] -> silu(gate) * up [T, F] -> down_proj -> [T, M]

A rank has some of the features; what the ranks make of theirs adds up (parallel/layers.py). (From level 01.)"""

from torch import Tensor

from ..parallel.layers import Build, ColumnLinear, Pieces, RowLinear


class MLP:
    """Of the features that this rank has. `name` is what a checkpoint calls it."""

    def __init__(self, name: str, hidden_size: int, features: range, *, bias: bool, build: Build):
        self.name, gate_up = name, {"gate_proj": features, "up_proj": features}
        self.gate_up_proj = ColumnLinear(gate_up, hidden_size, bias=bias, build=build)
        self.down_proj = RowLinear(hidden_size, features, bias=bias, build=build)
        self.silu_mul = build.ops.silu_mul

    def __call__(self, x: Tensor) -> Tensor:
        """x [T, M] -> [T, M], by way of [T, F]"""
        return self.down_proj(self.silu_mul(self.gate_up_proj(x)))

    def idle(self) -> None:
        """A step without a token: nobody waits for this."""

    def checkpoint(self, within: str) -> Pieces:
        name = f"{within}.{self.name}"
        return self.gate_up_proj.checkpoint(name) | self.down_proj.checkpoint(f"{name}.down_proj")

    def pack(self) -> None:
        self.gate_up_proj.pack()
        self.down_proj.pack()
