"""A decoder turns token ids into logits, one layer after the other, and remembers keys and values on the way.

    token_ids [T] -> embedding -> x [T, M]
    in each layer     x += o_proj(attend(rope(qkv_proj(norm(x)))))      the only place where tokens meet
                      x += down_proj(silu(gate) * up)                   token by token; or experts (moe.py)
    the sampled rows  norm(x[logits_indices]) -> lm_head -> logits [R, V]

A change is not added where it is made but by the next norm, which reads x anyway: between layers go (change, x).

T tokens of all sequences lie behind one another: nothing but `attend` knows where one ends. Llama, Mistral, Mixtral and
Qwen are one family and differ by what config.py says: biases, norms, windows, experts. From level 06 on a rank may have
a portion of it: some heads and features of some layers; without an embedding or a head it has an inlet or an outlet
there, to other stages. Invariant: only sampled rows reach the lm_head, the largest product. (From level 01.)"""

from itertools import chain

import torch
from torch import Tensor

from ..input_batch import InputBatch
from ..kv_cache import KVCache, LayerCache
from ..ops import Ops
from ..parallel.balance import Balance
from ..parallel.expert_parallel import SpreadExperts
from ..parallel.layers import Build, ColumnLinear, Embedding, Piece, Pieces, RowLinear, SplitEmbedding, pad_words, words
from ..parallel.pipeline import Inlet, Outlet
from ..parallel.place import Place
from .config import ModelConfig
from .expert_config import ExpertConfig
from .experts import Experts
from .fused_layer import FusedLayer, fuse
from .mlp import MLP
from .moe import MoE
from .quantization import Matrix, choose_schemes, list_tensors
from .rotary import Rotary

Angles = tuple[Tensor, Tensor]  # cos and sin, each [T, 1, D / 2]
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


class RMSNorm:
    """x / sqrt(mean(x^2) + eps), times a weight per channel."""

    def __init__(self, size: int, eps: float, build: Build):
        self.weight, self.eps, self.ops = build.empty(size), eps, build.ops

    def __call__(self, x: Tensor) -> Tensor:
        """x [..., size] -> the same shape"""
        return self.ops.rms_norm(x, self.weight, self.eps)

    def of_sum(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """x, residual [T, M] -> the norm of their sum, and the sum"""
        return self.ops.add_rms_norm(x, residual, self.weight, self.eps)


class Attention:
    """Of the heads that this rank has."""

    def __init__(self, config: ModelConfig, window: int | None, build: Build):
        D, portion = config.head_dim, build.portion
        self.num_heads, self.num_kv_heads, self.head_dim = len(portion.heads), len(portion.kv_heads), D
        q, kv = (range(heads.start * D, heads.stop * D) for heads in (portion.heads, portion.kv_heads))
        qkv = {"q_proj": q, "k_proj": kv, "v_proj": kv}
        self.qkv_proj = ColumnLinear(qkv, config.hidden_size, bias=config.qkv_bias, build=build)
        self.o_proj = RowLinear(config.hidden_size, q, bias=config.o_bias, build=build)
        self.q_norm = RMSNorm(D, config.rms_norm_eps, build) if config.qk_norm else None
        self.k_norm = RMSNorm(D, config.rms_norm_eps, build) if config.qk_norm else None
        self.attend, self.rope, self.window = build.ops.make_attend(window), build.ops.rope, window

    def __call__(self, x: Tensor, angles: Angles, cache: LayerCache, batch: InputBatch) -> Tensor:
        """x [T, M] -> [T, M]"""
        qkv = self.qkv_proj(x).view(len(x), -1, self.head_dim)  # [T, H + 2 K, D]
        q, k, v = qkv.tensor_split([self.num_heads, self.num_heads + self.num_kv_heads], dim=1)  # [T, H | K | K, D]
        if self.q_norm and self.k_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        out = self.attend(self.rope(q, *angles), self.rope(k, *angles), v, cache, batch)  # [T, H, D]
        return self.o_proj(out.flatten(1))

    def checkpoint(self, name: str) -> Pieces:
        pieces = self.qkv_proj.checkpoint(name) | self.o_proj.checkpoint(f"{name}.o_proj")
        if self.q_norm and self.k_norm:
            norms = {f"{name}.q_norm.weight": self.q_norm, f"{name}.k_norm.weight": self.k_norm}
            pieces |= {norm: Piece(part.weight) for norm, part in norms.items()}
        return pieces

    def pack(self) -> None:
        self.qkv_proj.pack()
        self.o_proj.pack()


class Layer:
    def __init__(self, config: ModelConfig, window: int | None, experts: ExpertConfig | None, build: Build):
        self.input_norm = RMSNorm(config.hidden_size, config.rms_norm_eps, build)
        self.attention = Attention(config, window, build)
        self.post_norm = RMSNorm(config.hidden_size, config.rms_norm_eps, build)
        self.mlp = make_mlp(config, experts, build)

    def __call__(
        self, change: Tensor, x: Tensor, angles: Angles, cache: LayerCache, batch: InputBatch
    ) -> tuple[Tensor, Tensor]:
        """x and the change to it that is yet to be added, [T, M] each -> the same after this layer"""
        normed, x = self.input_norm.of_sum(change, residual=x)
        normed, x = self.post_norm.of_sum(self.attention(normed, angles, cache, batch), residual=x)
        return self.mlp(normed), x

    def checkpoint(self, name: str) -> Pieces:
        norms = {"input_layernorm": self.input_norm, "post_attention_layernorm": self.post_norm}
        pieces = {f"{name}.{norm}.weight": Piece(part.weight) for norm, part in norms.items()}
        return pieces | self.attention.checkpoint(f"{name}.self_attn") | self.mlp.checkpoint(name)

    def pack(self) -> None:
        self.attention.pack()
        self.mlp.pack()


class Head:
    """The last norm, and a row of logits for whoever is sampled: this rank's words, then everybody's."""

    def __init__(self, config: ModelConfig, build: Build, tied: Matrix | None):
        self.share, self.group, self.vocab_size = build.portion.vocabulary, build.group, config.vocab_size
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, build)
        self.lm_head = build.linear(len(self.share), config.hidden_size, bias=False, scheme=build.schemes.words)
        self.lm_head.weight = pad_words(self.lm_head.weight, self.share, self.vocab_size) if tied is None else tied
        self.num_copied_bytes = 0 if tied is None or not self.lm_head.can_pack else tied.nbytes
        self.name = EMBEDDING if config.tie_word_embeddings else HEAD

    def __call__(self, change: Tensor, x: Tensor, batch: InputBatch) -> Tensor:
        """change, x [T, M] -> float32 logits [R, V] on rank 0, elsewhere no rows"""
        sampled = batch.logits_indices
        normed, _ = self.norm.of_sum(change[sampled], residual=x[sampled])
        return self.group.gather(self.lm_head(normed))[:, : self.vocab_size].float().contiguous()

    def checkpoint(self) -> Pieces:
        head = words(self.lm_head.weight, self.share, self.vocab_size)
        return {"model.norm.weight": Piece(self.norm.weight), self.name: head}

    def pack(self) -> None:
        self.lm_head.pack()


class Decoder:
    """The portion of a model that belongs to a place; alone, all of it.

    Weights are uninitialised until `weights.py` has filled what `checkpoint` names."""

    def __init__(
        self,
        config: ModelConfig,
        ops: Ops,
        dtype: torch.dtype,
        device: torch.device,
        place: Place | None = None,
        quantization: str = "none",
    ):
        place = place or Place.alone()
        self.config, self.portion = config, place.portion_of(config)
        schemes = choose_schemes(quantization, config, ops)
        build = Build(ops, dtype, device, self.portion, place.tensor, place.experts, place.num_redundant, schemes)
        self.layers = [Layer(config, config.sliding_windows[i], config.experts[i], build) for i in self.portion.layers]
        self.stack: list[Layer | FusedLayer] = [*self.layers]
        self.rotary = Rotary(config, dtype, device)
        embedding = make_embedding(config, build) if place.is_first else None
        tied = embedding.weight if embedding and config.tie_word_embeddings else None
        self.entrance = embedding or Inlet(config.hidden_size, build, place.pipeline)
        self.exit = Head(config, build, tied) if place.is_last else Outlet(config.vocab_size, place.pipeline)
        self.num_weight_bytes = self.count_weight_bytes()

    def __call__(self, batch: InputBatch, kv_cache: KVCache) -> Tensor:
        """Float32 logits [R, V] of the sampled rows, where the place answers; elsewhere [0, V]."""
        x = self.entrance(batch)  # [T, M]
        change, angles = torch.zeros_like(x), self.rotary.cos_sin(batch.positions)
        for layer, cache in zip(self.stack, kv_cache.layers, strict=True):
            change, x = layer(change, x, angles, cache, batch)
        return self.exit(change, x, batch)

    def idle(self) -> None:
        """A step without a token: ranks that have some may need the experts of this one."""
        for layer in self.layers:
            layer.mlp.idle()

    def rebalance(self) -> list[Balance]:
        """What each layer's experts were asked since last time; spread ones go where a plan wants them."""
        return [experts.rebalance() for experts in self.experts]

    def forget_load(self) -> None:
        for experts in self.experts:
            experts.load.zero_()

    @property
    def experts(self) -> list[Experts | SpreadExperts]:
        """Those of each layer that has some."""
        return [layer.mlp.experts for layer in self.layers if isinstance(layer.mlp, MoE)]

    def checkpoint(self) -> Pieces:
        """What a checkpoint has to fill here, by the names it has there; together that is all memory."""
        pieces = self.entrance.checkpoint(EMBEDDING)
        for i, layer in zip(self.portion.layers, self.layers, strict=True):
            pieces |= layer.checkpoint(f"model.layers.{i}")
        return pieces | self.exit.checkpoint()

    def count_weight_bytes(self) -> int:
        """Whole storages, for spare slots and padding are memory too, and what `pack` will add to them."""
        tensors = chain.from_iterable(list_tensors(piece.memory) for piece in self.checkpoint().values())
        storages = [tensor.untyped_storage() for tensor in tensors]
        return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values()) + self.exit.num_copied_bytes

    def pack(self) -> None:
        """Once loaded: put every matrix into the order its product likes best, and calls together where that pays."""
        for part in (*self.layers, self.exit):
            part.pack()
        self.stack = [fuse(layer) for layer in self.layers]


def make_mlp(config: ModelConfig, experts: ExpertConfig | None, build: Build) -> MLP | MoE:
    if experts:
        return MoE(config, experts, build)
    return MLP("mlp", config.hidden_size, build.portion.features, bias=config.mlp_bias, build=build)


def make_embedding(config: ModelConfig, build: Build) -> Embedding | SplitEmbedding:
    table = Embedding if build.group.size == 1 else SplitEmbedding
    return table(config.vocab_size, config.hidden_size, build)
