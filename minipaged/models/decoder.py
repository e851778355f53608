"""A decoder turns token ids into logits, one layer after the other, and remembers keys and values on the way.

    token_ids [T] -> embedding -> x [T, M]
    in each layer     x += o_proj(attend(rope(qkv_proj(norm(x)))))      the only place where tokens meet
                      x += down_proj(silu(gate) * up)                   token by token
    the sampled rows  norm(x[logits_indices]) -> lm_head -> logits [R, V]

A change is not added where it is made but by the next norm, which reads x anyway: between layers go (change, x).

T tokens of all sequences lie behind one another: nothing but `attend` knows where one ends. Llama, Mistral, Qwen2 and
Qwen3 are this one family and differ by what config.py says: biases, a norm on q and k, windows. Invariant: only sampled
rows reach the lm_head, the largest product of all. (From level 01.)"""

import torch
from torch import Tensor

from ..input_batch import InputBatch
from ..kv_cache import KVCache, LayerCache
from ..ops import Ops
from .config import ModelConfig
from .linear import Linear
from .rotary import Rotary

Angles = tuple[Tensor, Tensor]  # cos and sin, each [T, 1, D / 2]


class RMSNorm:
    """x / sqrt(mean(x^2) + eps), times a weight per channel."""

    def __init__(self, size: int, eps: float, ops: Ops, dtype: torch.dtype, device: torch.device):
        self.weight, self.eps, self.ops = torch.empty(size, dtype=dtype, device=device), eps, ops

    def __call__(self, x: Tensor) -> Tensor:
        """x [..., size] -> the same shape"""
        return self.ops.rms_norm(x, self.weight, self.eps)

    def of_sum(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """x, residual [T, M] -> the norm of their sum, and the sum"""
        return self.ops.add_rms_norm(x, residual, self.weight, self.eps)


class Attention:
    def __init__(self, config: ModelConfig, window: int | None, ops: Ops, dtype: torch.dtype, device: torch.device):
        self.num_heads, self.num_kv_heads, self.head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        q, kv, hidden = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim, config.hidden_size
        self.qkv_proj = Linear(q + 2 * kv, hidden, bias=config.qkv_bias, dtype=dtype, device=device)
        self.o_proj = Linear(hidden, q, bias=config.o_bias, dtype=dtype, device=device)
        self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps, ops, dtype, device) if config.qk_norm else None
        self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps, ops, dtype, device) if config.qk_norm else None
        self.attend, self.rope = ops.make_attend(window), ops.rope

    def __call__(self, x: Tensor, angles: Angles, cache: LayerCache, batch: InputBatch) -> Tensor:
        """x [T, M] -> [T, M]"""
        qkv = self.qkv_proj(x).view(len(x), -1, self.head_dim)  # [T, H + 2 K, D]
        q, k, v = qkv.tensor_split([self.num_heads, self.num_heads + self.num_kv_heads], dim=1)  # [T, H | K | K, D]
        if self.q_norm and self.k_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        out = self.attend(self.rope(q, *angles), self.rope(k, *angles), v, cache, batch)  # [T, H, D]
        return self.o_proj(out.flatten(1))

    def checkpoint(self, name: str) -> dict[str, Tensor]:
        q, kv = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        parts = self.qkv_proj.rows(f"{name}.q_proj", 0, q) | self.qkv_proj.rows(f"{name}.k_proj", q, kv)
        parts |= self.qkv_proj.rows(f"{name}.v_proj", q + kv, kv)
        parts |= self.o_proj.rows(f"{name}.o_proj")
        if self.q_norm and self.k_norm:
            parts |= {f"{name}.q_norm.weight": self.q_norm.weight, f"{name}.k_norm.weight": self.k_norm.weight}
        return parts


class MLP:
    def __init__(self, config: ModelConfig, ops: Ops, dtype: torch.dtype, device: torch.device):
        self.size, hidden, bias = config.intermediate_size, config.hidden_size, config.mlp_bias
        self.gate_up_proj = Linear(2 * self.size, hidden, bias=bias, dtype=dtype, device=device)
        self.down_proj = Linear(hidden, self.size, bias=bias, dtype=dtype, device=device)
        self.silu_mul = ops.silu_mul

    def __call__(self, x: Tensor) -> Tensor:
        """x [T, M] -> [T, M], by way of [T, F]"""
        return self.down_proj(self.silu_mul(self.gate_up_proj(x)))

    def checkpoint(self, name: str) -> dict[str, Tensor]:
        parts = self.gate_up_proj.rows(f"{name}.gate_proj", 0, self.size)
        parts |= self.gate_up_proj.rows(f"{name}.up_proj", self.size, self.size)
        return parts | self.down_proj.rows(f"{name}.down_proj")


class Layer:
    def __init__(self, config: ModelConfig, window: int | None, ops: Ops, dtype: torch.dtype, device: torch.device):
        self.input_norm = RMSNorm(config.hidden_size, config.rms_norm_eps, ops, dtype, device)
        self.attention = Attention(config, window, ops, dtype, device)
        self.post_norm = RMSNorm(config.hidden_size, config.rms_norm_eps, ops, dtype, device)
        self.mlp = MLP(config, ops, dtype, device)

    def __call__(
        self, change: Tensor, x: Tensor, angles: Angles, cache: LayerCache, batch: InputBatch
    ) -> tuple[Tensor, Tensor]:
        """x and the change to it that is yet to be added, [T, M] each -> the same after this layer"""
        normed, x = self.input_norm.of_sum(change, residual=x)
        normed, x = self.post_norm.of_sum(self.attention(normed, angles, cache, batch), residual=x)
        return self.mlp(normed), x

    def checkpoint(self, name: str) -> dict[str, Tensor]:
        norms = {"input_layernorm": self.input_norm, "post_attention_layernorm": self.post_norm}
        parts = {f"{name}.{norm}.weight": part.weight for norm, part in norms.items()}
        return parts | self.attention.checkpoint(f"{name}.self_attn") | self.mlp.checkpoint(f"{name}.mlp")


class Decoder:
    """Weights are uninitialised until `weights.py` has filled what `checkpoint` names."""

    def __init__(self, config: ModelConfig, ops: Ops, dtype: torch.dtype, device: torch.device):
        self.config = config
        self.embedding = torch.empty(config.vocab_size, config.hidden_size, dtype=dtype, device=device)  # [V, M]
        self.layers = [Layer(config, window, ops, dtype, device) for window in config.sliding_windows]
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, ops, dtype, device)
        self.rotary = Rotary(config, dtype, device)
        self.lm_head = Linear(config.vocab_size, config.hidden_size, bias=False, dtype=dtype, device=device)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.embedding

    def __call__(self, batch: InputBatch, kv_cache: KVCache) -> Tensor:
        """Float32 logits [R, V] of the sampled rows."""
        x = self.embedding[batch.token_ids]  # [T, M]
        change, angles = torch.zeros_like(x), self.rotary.cos_sin(batch.positions)
        for layer, cache in zip(self.layers, kv_cache.layers, strict=True):
            change, x = layer(change, x, angles, cache, batch)
        normed, _ = self.norm.of_sum(change[batch.logits_indices], residual=x[batch.logits_indices])
        return self.lm_head(normed).float()

    def checkpoint(self) -> dict[str, Tensor]:
        """Every name a checkpoint has to have, and the memory it fills; together they are all the weights."""
        parts = {"model.embed_tokens.weight": self.embedding, "model.norm.weight": self.norm.weight}
        for i, layer in enumerate(self.layers):
            parts |= layer.checkpoint(f"model.layers.{i}")
        return parts if self.config.tie_word_embeddings else parts | {"lm_head.weight": self.lm_head.weight}

    def pack(self) -> None:
        """Once loaded: put every matrix into the order its product likes best."""
        for layer in self.layers:
            for part in (layer.attention.qkv_proj, layer.attention.o_proj, layer.mlp.gate_up_proj, layer.mlp.down_proj):
                part.pack()
        self.lm_head.pack()
