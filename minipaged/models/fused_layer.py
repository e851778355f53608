"""A layer that makes one call of a step with few tokens, and of all others as many as it always did.

    few tokens     layer_int8_cpu(...)                                   where Python's calls took most of the time
    more           norm(...), attention(...), norm(...), mlp(...)        where products do

Only where matrices are kept in 8 bits and multiplied by a CPU's loops; a layer with biases, norms of heads, experts or
other ranks stays as it is. (From level 01.)"""

from functools import partial
from typing import TYPE_CHECKING

from torch import Tensor

from ..input_batch import InputBatch
from ..kernels.jit import flat
from ..kernels.layer_int8 import Product, layer_int8_cpu
from ..kernels.linear_int8 import linear_int8_cpu, num_few
from ..kernels.paged_attention import ALL_KEYS
from ..kernels.rms_norm import Scaling
from ..kv_cache import LayerCache
from .linear import Linear
from .mlp import MLP
from .quantization import Codes

if TYPE_CHECKING:
    from .decoder import Layer, RMSNorm

Angles = tuple[Tensor, Tensor]


class FusedLayer:
    """Of a layer whose weights are loaded."""

    def __init__(self, layer: "Layer", mlp: MLP):
        self.layer, self.mlp, attention = layer, mlp, layer.attention
        qkv, o = attention.qkv_proj.linear, attention.o_proj.linear
        weights = (
            scaling(layer.input_norm), product(qkv), product(o),
            scaling(layer.post_norm), product(mlp.gate_up_proj.linear), product(mlp.down_proj.linear),
        )  # fmt: skip
        self.fused = partial(layer_int8_cpu, weights, ALL_KEYS if attention.window is None else attention.window)

    def __call__(
        self, change: Tensor, x: Tensor, angles: Angles, cache: LayerCache, batch: InputBatch
    ) -> tuple[Tensor, Tensor]:
        """As Layer."""
        keys, values, scales = cache
        if len(x) > num_few() or scales is not None:
            return self.layer(change, x, angles, cache, batch)
        places = batch.slot_mapping, batch.block_tables, batch.query_start_loc, batch.seq_lens
        return self.fused((change, x), angles, (keys, values), places)


def fuse(layer: "Layer") -> "Layer | FusedLayer":
    """The layer as it is, if it has something that the one call does not know."""
    attention, mlp = layer.attention, layer.mlp
    if not isinstance(mlp, MLP) or attention.q_norm or attention.o_proj.group.size > 1:
        return layer
    linears = attention.qkv_proj, attention.o_proj, mlp.gate_up_proj, mlp.down_proj
    return FusedLayer(layer, mlp) if all(is_known(part.linear) for part in linears) else layer


def is_known(linear: Linear) -> bool:
    return linear.bias is None and getattr(linear.product, "args", ()) == (linear_int8_cpu,)


def scaling(norm: "RMSNorm") -> Scaling:
    return flat(norm.weight), norm.eps


def product(linear: Linear) -> Product:
    weight = linear.weight
    assert isinstance(weight, Codes)
    codes, scale = weight.parts
    return codes.numpy(), flat(scale)
