"""y = x W^T + b, for one matrix or for several that read the same x, stacked so that one product serves them all.

    q_proj [H D, M] \
    k_proj [K D, M]  > weight [(H + 2 K) D, M]      rows() hands out the slices that the checkpoint fills
    v_proj [K D, M] /

(From level 01.)"""

import torch
from torch import Tensor
from torch.nn.functional import linear


class Linear:
    """Weights of shape [outputs, inputs], uninitialised until they are loaded."""

    def __init__(self, outputs: int, inputs: int, *, bias: bool, dtype: torch.dtype, device: torch.device):
        self.weight = torch.empty(outputs, inputs, dtype=dtype, device=device)
        self.bias = torch.empty(outputs, dtype=dtype, device=device) if bias else None

    def __call__(self, x: Tensor) -> Tensor:
        """x [T, inputs] -> [T, outputs]"""
        return linear(x, self.weight, self.bias)

    def rows(self, name: str, start: int, num_rows: int) -> dict[str, Tensor]:
        """The rows that checkpoint tensor `name` fills, by the names it has there."""
        parts = {f"{name}.weight": self.weight[start : start + num_rows]}
        if self.bias is not None:
            parts[f"{name}.bias"] = self.bias[start : start + num_rows]
        return parts
