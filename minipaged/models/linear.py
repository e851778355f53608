"""y = x W^T + b, for one matrix or for several that read the same x, stacked so that one product serves them all.

    q_proj [H D, M] \\
    k_proj [K D, M]  > weight [(H + 2 K) D, M]      parallel/layers.py knows whose rows are whose
    v_proj [K D, M] /

A decode step multiplies few rows by large matrices. For that a float32 matrix on a CPU is kept in the order in which
oneDNN's loops read it: for few rows that is faster than torch's own order, for many it is no slower. Packing
replaces the plain copy, so weights stand in memory once; only a tied embedding, which is also looked up by row, has
both. One row or two are multiplied in the same memory by loops of our own, where its order is known
(kernels/linear_packed.py). Codes of fewer bits (quantization.py) stay in the order they have. (From level 01.)"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from ..kernels.jit import Floats
from ..kernels.linear_packed import FEW, find_blocks, linear_packed_cpu
from .quantization import PLAIN, Matrix, Scheme

Product = Callable[[Tensor, Matrix, Tensor | None], Tensor]

HAS_ONEDNN: bool = torch._C._has_mkldnn


class Linear:
    """Weights of shape [outputs, inputs], uninitialised until they are loaded, then packed where that pays."""

    def __init__(
        self,
        outputs: int,
        inputs: int,
        *,
        bias: bool,
        dtype: torch.dtype,
        device: torch.device,
        scheme: Scheme = PLAIN,
    ):
        self.product: Product = scheme.multiply
        self.weight = scheme.make(outputs, inputs, dtype, device)
        self.bias = torch.empty(outputs, dtype=dtype, device=device) if bias else None
        self.blocks: Floats | None = None  # the packed weight's memory

    def __call__(self, x: Tensor) -> Tensor:
        """x [T, inputs] -> [T, outputs]"""
        return self.product(x, self.weight, self.bias)

    @property
    def can_pack(self) -> bool:
        plain = isinstance(self.weight, Tensor) and self.weight.dtype == torch.float32
        return plain and self.weight.device.type == "cpu" and HAS_ONEDNN

    def pack(self) -> None:
        """Once the weights are loaded. They cannot be read or filled any more."""
        if isinstance(self.weight, Tensor) and self.can_pack:
            packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(self.weight)
            self.blocks = find_blocks(packed, self.weight)
            self.weight = packed
            self.product = packed_linear if self.blocks is None else partial(packed_or_few, self.blocks)


def packed_linear(x: Tensor, weight: Matrix, bias: Tensor | None) -> Tensor:
    y: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return y


def packed_or_few(blocks: Floats, x: Tensor, weight: Matrix, bias: Tensor | None) -> Tensor:
    """Few rows by our own loops."""
    if len(x) > FEW:
        return packed_linear(x, weight, bias)
    y = linear_packed_cpu(x, blocks)
    return y if bias is None else y + bias
