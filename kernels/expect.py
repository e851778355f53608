"""A kernel believes its pointers, so its launcher doubts them first.

    expect("keys", keys, (None, K, P, D), like=q)      shape (None: any size), device, dtype, last axis contiguous

A wrong shape or stride would not raise on a GPU: it would read somebody else's memory. Every launcher calls `expect`
for each tensor it is given; the strides of the other axes may be anything, they are passed on."""

import torch
from torch import Tensor

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
