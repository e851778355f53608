"""A layer that makes one call of a step with few tokens, and of all others as many as it always did.

    few tokens     layer_cpu(...)                                        where Python's calls took much of the time
    more           norm(...), attention(...), norm(...), mlp(...)        where products take it all

Only where a CPU's loops multiply: codes of 8 bits, or float32 as oneDNN keeps it. A layer with biases, norms of heads,
experts or other ranks stays as it is. (From level 01.)"""

from functools import partial
from typing import TYPE_CHECKING

from torch import Tensor

from ..input_batch import InputBatch
from ..kernels.jit import flat
from ..kernels.layer import Product, layer_cpu
from ..kernels.linear_int8 import linear_int8_cpu, num_few
from ..kernels.linear_packed import FEW
from ..kernels.paged_attention import ALL_KEYS
from ..kernels.rms_norm import Scaling
from ..kernels.rope import rope_cpu
from ..kv_cache import LayerCache
from .linear import Linear
from .mlp import MLP
from .quantization import Codes

if TYPE_CHECKING:
    from .decoder import Layer, RMSNorm

Angles = tuple[Tensor, Tensor]


class FusedLayer:
    """Of a layer whose weights are loaded."""

    def __init__(self, layer: "Layer", mlp: MLP, products: list[Product]):
        self.layer, self.mlp, (qkv, o, gate_up, down) = layer, mlp, products
        weights = scaling(layer.input_norm), qkv, o, scaling(layer.post_norm), gate_up, down
        window = layer.attention.window
        self.fused = partial(layer_cpu, weights, ALL_KEYS if window is None else window)
        self.has_codes = qkv[2] is not None

    def __call__(
        self, change: Tensor, x: Tensor, angles: Angles, cache: LayerCache, batch: InputBatch
    ) -> tuple[Tensor, Tensor]:
        """As Layer."""
        keys, values, scales = cache
        if len(x) > (num_few() if self.has_codes else FEW) or scales is not None:
            return self.layer(change, x, angles, cache, batch)
        places = batch.slot_mapping, batch.block_tables, batch.query_start_loc, batch.seq_lens
        return self.fused((change, x), angles, (keys, values), places)


def fuse(layer: "Layer") -> "Layer | FusedLayer":
    """The layer as it is, if it has something that the one call does not know."""
    attention, mlp = layer.attention, layer.mlp
    if (
        not isinstance(mlp, MLP)
        or attention.q_norm
        or attention.o_proj.group.size > 1
        or attention.rope is not rope_cpu
    ):
        return layer
    parts = attention.qkv_proj, attention.o_proj, mlp.gate_up_proj, mlp.down_proj
    products = [known for part in parts if (known := find_product(part.linear))]
    return FusedLayer(layer, mlp, products) if len(products) == len(parts) else layer


def find_product(linear: Linear) -> Product | None:
    if linear.bias is not None:
        return None
    if linear.blocks is not None:
        return *linear.weight.shape, None, None, linear.blocks
    if getattr(linear.product, "args", ()) != (linear_int8_cpu,):
        return None
    assert isinstance(linear.weight, Codes)
    codes, scale = linear.weight.parts
    return *codes.shape, codes.numpy(), flat(scale), None


def scaling(norm: "RMSNorm") -> Scaling:
    return flat(norm.weight), norm.eps
