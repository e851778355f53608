"""Of every model each rank has a portion: some of the layers, and in them some of the heads, features and words.

    30 layers, 4 stages      |0 ... 7|8 .. 14|15 ... 22|23 .. 29|     all of them, in order, sizes differ by at most one

    9 heads, 3 kv heads      rank 0   q0 q1 q2   kv0                  every query head beside the keys it looks at
    on 3 ranks               rank 1   q3 q4 q5   kv1
                             rank 2   q6 q7 q8   kv2

    8 heads, 2 kv heads      rank 0   q0 q1      kv0                  more ranks than kv heads: some have the same one
    on 4 ranks               rank 1   q2 q3      kv0
                             rank 2   q4 q5      kv1
                             rank 3   q6 q7      kv1

Features (the inside of an MLP) need not come out even. The vocabulary is padded until every rank has as many rows as
the others, since their logits are laid side by side; behind the last word a row is zero, and its logit cut off again.
Invariant: portions are disjoint and together the model, replicated kv heads aside. (From level 06.)"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from ..models.config import ModelConfig


class Nth(NamedTuple):
    """Which of how many, counted from 0."""

    rank: int = 0
    size: int = 1


class Portion(NamedTuple):
    layers: range  # of the L
    heads: range  # of the H
    kv_heads: range  # of the K
    features: range  # of the F
    vocabulary: range  # of the V and the padding behind


def split_model(config: ModelConfig, tensor: Nth, pipeline: Nth, stage_layers: Sequence[int] | None = None) -> Portion:
    """What one rank has. Raises ValueError, naming what would work, if the model cannot be split like that."""
    check_heads(config, tensor.size)
    padded = -(-config.vocab_size // tensor.size) * tensor.size
    return Portion(
        layers=split_layers(config.num_layers, pipeline.size, stage_layers)[pipeline.rank],
        heads=split(config.num_heads, tensor.size)[tensor.rank],
        kv_heads=split_kv_heads(config.num_kv_heads, tensor.size)[tensor.rank],
        features=split(config.intermediate_size, tensor.size)[tensor.rank],
        vocabulary=split(padded, tensor.size)[tensor.rank],
    )


def split(total: int, num_parts: int) -> list[range]:
    """[0, total) in order, in parts that differ by at most one; the last one is never the larger."""
    borders = [-(-total * i // num_parts) for i in range(num_parts + 1)]
    return [range(start, end) for start, end in pairwise(borders)]


def split_kv_heads(num_kv_heads: int, num_parts: int) -> list[range]:
    if num_parts <= num_kv_heads:
        return split(num_kv_heads, num_parts)
    return [range(i * num_kv_heads // num_parts, i * num_kv_heads // num_parts + 1) for i in range(num_parts)]


def split_layers(num_layers: int, num_stages: int, stage_layers: Sequence[int] | None = None) -> list[range]:
    """Which layers each stage has: as even as can be, or as listed."""
    if num_stages > num_layers:
        raise ValueError(f"pipeline_parallel_size {num_stages} exceeds the model's {num_layers} layers")
    if stage_layers is None:
        return split(num_layers, num_stages)
    if len(stage_layers) != num_stages or sum(stage_layers) != num_layers or min(stage_layers) < 1:
        listed = f"{','.join(map(str, stage_layers))} are {sum(stage_layers)} layers in {len(stage_layers)} stages"
        wanted = f"the model has {num_layers} and pipeline_parallel_size is {num_stages}"
        raise ValueError(f"pipeline_layers {listed}; {wanted}, each at least 1")
    ends = [sum(stage_layers[: i + 1]) for i in range(num_stages)]
    return [range(end - size, end) for end, size in zip(ends, stage_layers, strict=True)]


def check_heads(config: ModelConfig, tensor_size: int) -> None:
    """Every rank needs as many query heads as the others, and none beside keys it does not have."""
    legal = [n for n in range(1, config.num_heads + 1) if is_even(config, n)]
    if tensor_size not in legal:
        heads = f"{config.num_heads} query heads and {config.num_kv_heads} kv heads"
        raise ValueError(f"tensor_parallel_size {tensor_size} does not divide {heads}; {either(legal)} would")


def is_even(config: ModelConfig, tensor_size: int) -> bool:
    split_or_copied = config.num_kv_heads % tensor_size == 0 or tensor_size % config.num_kv_heads == 0
    return config.num_heads % tensor_size == 0 and split_or_copied


def either(numbers: list[int]) -> str:
    """1, 3 or 9"""
    *others, last = map(str, numbers)
    return f"{', '.join(others)} or {last}" if others else last
