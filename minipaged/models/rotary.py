"""A position is a set of angles: pair i of a head's dimensions turns by position * inv_freq[i].

    x = [a0 a1 .. | b0 b1 ..]        pair i is (a_i, b_i): halves, not neighbours
    a_i' = a_i cos - b_i sin
    b_i' = b_i cos + a_i sin         so q . k depends only on the distance between them

    default   inv_freq[i] = theta ** (-2 i / D)
    linear    all divided by factor: positions are squeezed
    llama3    slow pairs (wavelength above original / low) divided by factor, fast ones kept, those between blended
    yarn      the same idea, blended by index; cos and sin scaled by an attention factor

Angles are computed in float32 whatever the model's dtype, from the positions of the step: there is no table and so no
longest position. Formulas and constants are those of transformers (contract, policy 15). (From level 01.)"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from .config import ModelConfig, RopeConfig


class Rotary:
    """Angles for positions, once per step; every layer turns its q and k by them (kernels/rope.py)."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device):
        inv_freq, self.scale = INV_FREQ[config.rope.rope_type](config.rope, config.head_dim)
        self.inv_freq, self.dtype = inv_freq.to(device), dtype  # [D / 2]

    def cos_sin(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """positions [T] -> cos, sin, each [T, 1, D / 2]: the same for every head."""
        angles = positions[:, None, None].float() * self.inv_freq  # [T, 1, D / 2]
        return (angles.cos() * self.scale).to(self.dtype), (angles.sin() * self.scale).to(self.dtype)


InvFreq = tuple[Tensor, float]  # [D / 2], and what to scale cos and sin by


def default_inv_freq(rope: RopeConfig, head_dim: int) -> InvFreq:
    return 1.0 / pair_periods(rope, head_dim), 1.0


def linear_inv_freq(rope: RopeConfig, head_dim: int) -> InvFreq:
    return 1.0 / pair_periods(rope, head_dim) / rope.factor, 1.0


def llama3_inv_freq(rope: RopeConfig, head_dim: int) -> InvFreq:
    inv_freq = 1.0 / pair_periods(rope, head_dim)
    num_turns = rope.original_max_position_embeddings / (2 * math.pi / inv_freq)  # over the length it was trained on
    keep = (num_turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    keep = keep.clamp(0, 1)
    return (1 - keep) * inv_freq / rope.factor + keep * inv_freq, 1.0


def yarn_inv_freq(rope: RopeConfig, head_dim: int) -> InvFreq:
    periods = pair_periods(rope, head_dim)
    low = yarn_pair(rope, head_dim, rope.beta_fast)
    high = yarn_pair(rope, head_dim, rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    width = high - low or 0.001
    keep = 1 - ((torch.arange(head_dim // 2).float() - low) / width).clamp(0, 1)
    return 1.0 / (rope.factor * periods) * (1 - keep) + 1.0 / periods * keep, yarn_attention_factor(rope)


def yarn_pair(rope: RopeConfig, head_dim: int, num_turns: float) -> float:
    """The (fractional) pair that turns so many times over the length it was trained on."""
    wavelength = rope.original_max_position_embeddings / (num_turns * 2 * math.pi)
    return head_dim * math.log(wavelength) / (2 * math.log(rope.theta))


def yarn_attention_factor(rope: RopeConfig) -> float:
    def mscale(weight: float) -> float:
        return 0.1 * weight * math.log(rope.factor) + 1.0 if rope.factor > 1 else 1.0

    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.mscale and rope.mscale_all_dim:
        return mscale(rope.mscale) / mscale(rope.mscale_all_dim)
    return mscale(1.0)


def pair_periods(rope: RopeConfig, head_dim: int) -> Tensor:
    """[D / 2], tokens per radian of each pair."""
    return torch.pow(rope.theta, torch.arange(0, head_dim, 2).float() / head_dim)


INV_FREQ: dict[str, Callable[[RopeConfig, int], InvFreq]] = {
    "default": default_inv_freq,
    "linear": linear_inv_freq,
    "llama3": llama3_inv_freq,
    "yarn": yarn_inv_freq,
}
