"""A decoder turns token ids into logits, one layer after the other, and remembers keys and values on the way.

    token_ids [T] -> embedding -> x [T, M]
    in each layer     x += o_proj(attend(rope(qkv_proj(norm(x)))))      the only place where tokens meet
                      x += down_proj(silu(gate) * up)                   token by token
    the sampled rows  norm(x[logits_indices]) -> lm_head -> logits [R, V]

T tokens of all sequences lie behind one another: nothing but `attend` knows where one ends. Llama, Mistral, Qwen2 and
Qwen3 are this one family and differ by what config.py says: biases, a norm on q and k, windows. Invariant: only sampled
rows reach the lm_head, the largest product of all. (From level 01.)"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import rms_norm, silu

from ..attention import Attend
from ..input_batch import InputBatch
from ..kv_cache import KVCache, LayerCache
from .config import ModelConfig
from .linear import Linear
from .rotary import Rotary, rotate

Angles = tuple[Tensor, Tensor]  # cos and sin, each [T, 1, D / 2]
MakeAttend = Callable[[int | None], Attend]  # given a layer's sliding window


class RMSNorm:
    """x / sqrt(mean(x^2) + eps), times a weight per channel."""

    def __init__(self, size: int, eps: float, dtype: torch.dtype, device: torch.device):
        self.weight, self.eps = torch.empty(size, dtype=dtype, device=device), eps

    def __call__(self, x: Tensor) -> Tensor:
        """x [..., size] -> the same shape"""
        return rms_norm(x, self.weight.shape, self.weight, self.eps)


class Attention:
    def __init__(self, config: ModelConfig, attend: Attend, dtype: torch.dtype, device: torch.device):
        self.num_heads, self.num_kv_heads, self.head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        q, kv, hidden = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim, config.hidden_size
        self.qkv_proj = Linear(q + 2 * kv, hidden, bias=config.qkv_bias, dtype=dtype, device=device)
        self.o_proj = Linear(hidden, q, bias=config.o_bias, dtype=dtype, device=device)
        self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps, dtype, device) if config.qk_norm else None
        self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps, dtype, device) if config.qk_norm else None
        self.attend = attend

    def __call__(self, x: Tensor, angles: Angles, cache: LayerCache, batch: InputBatch) -> Tensor:
        """x [T, M] -> [T, M]"""
        qkv = self.qkv_proj(x).view(len(x), -1, self.head_dim)  # [T, H + 2 K, D]
        q, k, v = qkv.tensor_split([self.num_heads, self.num_heads + self.num_kv_heads], dim=1)  # [T, H | K | K, D]
        if self.q_norm and self.k_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        out = self.attend(rotate(q, *angles), rotate(k, *angles), v, cache, batch)  # [T, H, D]
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
    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device):
        self.size, hidden, bias = config.intermediate_size, config.hidden_size, config.mlp_bias
        self.gate_up_proj = Linear(2 * self.size, hidden, bias=bias, dtype=dtype, device=device)
        self.down_proj = Linear(hidden, self.size, bias=bias, dtype=dtype, device=device)

    def __call__(self, x: Tensor) -> Tensor:
        """x [T, M] -> [T, M], by way of [T, F]"""
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)  # [T, F]
        return self.down_proj(silu(gate) * up)

    def checkpoint(self, name: str) -> dict[str, Tensor]:
        parts = self.gate_up_proj.rows(f"{name}.gate_proj", 0, self.size)
        parts |= self.gate_up_proj.rows(f"{name}.up_proj", self.size, self.size)
        return parts | self.down_proj.rows(f"{name}.down_proj")


class Layer:
    def __init__(self, config: ModelConfig, attend: Attend, dtype: torch.dtype, device: torch.device):
        self.input_norm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype, device)
        self.attention = Attention(config, attend, dtype, device)
        self.post_norm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype, device)
        self.mlp = MLP(config, dtype, device)

    def __call__(self, x: Tensor, angles: Angles, cache: LayerCache, batch: InputBatch) -> Tensor:
        """x [T, M] -> [T, M]"""
        x = x + self.attention(self.input_norm(x), angles, cache, batch)
        return x + self.mlp(self.post_norm(x))

    def checkpoint(self, name: str) -> dict[str, Tensor]:
        norms = {"input_layernorm": self.input_norm, "post_attention_layernorm": self.post_norm}
        parts = {f"{name}.{norm}.weight": part.weight for norm, part in norms.items()}
        return parts | self.attention.checkpoint(f"{name}.self_attn") | self.mlp.checkpoint(f"{name}.mlp")


class Decoder:
    """Weights are uninitialised until `weights.py` has filled what `checkpoint` names."""

    def __init__(self, config: ModelConfig, make_attend: MakeAttend, dtype: torch.dtype, device: torch.device):
        self.config = config
        self.embedding = torch.empty(config.vocab_size, config.hidden_size, dtype=dtype, device=device)  # [V, M]
        self.layers = [Layer(config, make_attend(window), dtype, device) for window in config.sliding_windows]
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype, device)
        self.rotary = Rotary(config, dtype, device)
        self.lm_head = Linear(config.vocab_size, config.hidden_size, bias=False, dtype=dtype, device=device)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.embedding

    def __call__(self, batch: InputBatch, kv_cache: KVCache) -> Tensor:
        """Float32 logits [R, V] of the sampled rows."""
        x = self.embedding[batch.token_ids]  # [T, M]
        angles = self.rotary.cos_sin(batch.positions)
        for layer, cache in zip(self.layers, kv_cache.layers, strict=True):
            x = layer(x, angles, cache, batch)
        return self.lm_head(self.norm(x[batch.logits_indices])).float()

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
