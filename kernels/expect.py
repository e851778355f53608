"""A kernel believes its pointers, so its launcher doubts them first.

    expect("keys", keys, (None, K, P, D), like=q)      shape (None: any size), device, dtype, last axis contiguous

A wrong shape or stride would not raise on a GPU: it would read somebody else's memory. Every launcher calls `expect`
for each tensor it is given; the strides of the other axes may be anything, they are passed on."""

import torch
from torch import Tensor

from .narrow import LARGEST, Scales

OPTIONS = {"enable_fp_fusion": True}  # of every launch: a * b + c in one instruction, as Triton 3.10 wants to be asked


def expect(
    name: str, tensor: Tensor, shape: tuple[int | None, ...], like: Tensor, dtype: torch.dtype | None = None
) -> None:
    """Raise ValueError unless tensor has this shape, dtype (like's, if None), like's device, and unit stride last."""
    sizes = tuple(tensor.shape)
    if len(sizes) != len(shape) or any(want not in (None, size) for size, want in zip(sizes, shape, strict=True)):
        raise ValueError(f"{name} has shape {sizes}, expected {tuple('any' if n is None else n for n in shape)}")
    if tensor.device != like.device:
        raise ValueError(f"{name} is on {tensor.device}, the others on {like.device}")
    if tensor.dtype != (dtype or like.dtype):
        raise ValueError(f"{name} is {tensor.dtype}, expected {dtype or like.dtype}")
    if tensor.numel() and sizes and sizes[-1] > 1 and tensor.stride(-1) != 1:
        raise ValueError(f"{name} has stride {tensor.stride(-1)} in its last axis, expected 1")


def expect_pool(
    keys: Tensor, values: Tensor, shape: tuple[int | None, ...], scales: Scales | None, like: Tensor
) -> None:
    """Keys and values [B, K, P, D]: like's dtype; or narrow, with float32 scales [B, K, P] that lie alike."""
    if scales is not None and keys.dtype not in LARGEST:
        raise ValueError(f"keys are {keys.dtype}, which has no scales: {', '.join(map(str, LARGEST))} have")
    dtype = None if scales is None else keys.dtype
    expect("keys", keys, shape, like, dtype)
    expect("values", values, tuple(keys.shape), like, dtype)
    for name, scale in zip(("key_scales", "value_scales"), scales or (), strict=False):
        expect(name, scale, tuple(keys.shape[:3]), like, torch.float32)
    if scales is not None and scales[0].stride() != scales[1].stride():
        raise ValueError(f"key_scales have strides {scales[0].stride()}, value_scales {scales[1].stride()}")


def scale_strides(scales: Scales | None) -> tuple[int, int]:
    """From block to block and head to head."""
    return (0, 0) if scales is None else (scales[0].stride(0), scales[0].stride(1))
