"""What each row wishes, packed for the kernel that turns logits into tokens in one launch.

    asked      temperature, min_p, top_k, top_p, seed, position     numbers, one of each a row
    edits      {token: (how often it was said, bias)}               a list a row, of the tokens that are named
    allowed    grammar and allowed_token_ids                        a bit a token; only if some row forbids any

The same wishes as `processors.py` and `sampling.py` fulfil, in the same order; kernels/sample.py says what becomes of
them. A token that must not be said yet is named with a bias of -inf. Invariant: what is packed grows with the tokens
that are named, never with the vocabulary, but for the bits. (From level 01.)"""

import math
from collections import Counter

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .batch import Row
from .kernels.sample_triton import Asked, Edits
from .kernels.sample_triton import sample as launch

NEVER = -1  # how often a token was said that stands neither in the prompt nor in the output


def sample(logits: Tensor, rows: list[Row]) -> list[int]:
    """One token id for each row, from float32 logits [R + Q, V]: from R on nothing is drawn."""
    vocab_size, device = logits.shape[-1], logits.device
    tokens = launch(
        logits[: len(rows)], pack_numbers(rows, device), pack_edits(rows, device), pack_bits(rows, vocab_size, device)
    )
    result: list[int] = tokens.tolist()
    return result


def pack_numbers(rows: list[Row], device: torch.device) -> Asked:
    """One copy for all of them; each begins on a border of 16 bytes, as kernels like it."""
    params, R = [row.params for row in rows], len(rows)
    whole = np.zeros((6, R + R % 2), np.int64)
    real = whole.view(np.float64)
    real[0, :R] = [0.0 if p.greedy else p.temperature for p in params]
    real[1, :R] = [p.min_p for p in params]
    real[2, :R] = [p.top_p for p in params]
    whole[3, :R] = [min(p.top_k, 2**31 - 1) for p in params]
    whole[4, :R] = [row.seed for row in rows]
    whole[5, :R] = [row.position for row in rows]
    there = send(torch.from_numpy(whole), device)
    temperature, min_p, top_p = there[:3, :R].view(torch.float64)
    top_k, seeds, positions = there[3:, :R]
    return Asked(temperature, min_p, top_k, top_p, seeds, positions)


def pack_edits(rows: list[Row], device: torch.device) -> Edits | None:
    """None if no row names a token."""
    named = [name_tokens(row) for row in rows]
    if not any(named):
        return None
    params, entries = [row.params for row in rows], [entry for of_row in named for entry in of_row.values()]
    starts = np.cumsum([0, *map(len, named)])
    return Edits(
        starts=integers(starts.tolist(), device, torch.int32),
        ids=integers([token_id for of_row in named for token_id in of_row], device, torch.int32),
        counts=integers([count for count, _ in entries], device, torch.int32),
        bias=floats([bias for _, bias in entries], device, torch.float32),
        repetition=floats([p.repetition_penalty for p in params], device),
        frequency=floats([p.frequency_penalty for p in params], device),
        presence=floats([p.presence_penalty for p in params], device),
    )


def name_tokens(row: Row) -> dict[int, tuple[int, float]]:
    """What becomes of single tokens: how often each was said, and its bias."""
    if not row.has_wishes:
        return {}
    said = {**dict.fromkeys(row.prompt, 0), **Counter(row.output)}
    bias = (row.params.logit_bias or {}) | dict.fromkeys(row.held_back, -math.inf)
    return {token_id: (said.get(token_id, NEVER), bias.get(token_id, 0.0)) for token_id in said | bias}


def pack_bits(rows: list[Row], vocab_size: int, device: torch.device) -> Tensor | None:
    """[R, V / 32 rounded up] int32; None if every row allows every token."""
    if not any(row.permitted is not None or row.params.allowed_token_ids for row in rows):
        return None
    words = np.full((len(rows), -(-vocab_size // 32)), -1, np.int32)
    for row, bits in zip(rows, words, strict=True):
        if row.permitted is not None:
            bits &= np.frombuffer(row.permitted, np.int32)
        if row.params.allowed_token_ids:
            bits &= to_bits(row.params.allowed_token_ids, len(bits))
    return send(torch.from_numpy(words), device)


def to_bits(token_ids: tuple[int, ...], num_words: int) -> NDArray[np.int32]:
    flags = np.zeros(32 * num_words, np.uint8)
    flags[list(token_ids)] = 1
    return np.packbits(flags, bitorder="little").view(np.int32)


def floats(values: list[float], device: torch.device, dtype: torch.dtype = torch.float64) -> Tensor:
    return send(torch.tensor(values, dtype=dtype), device)


def integers(values: list[int], device: torch.device, dtype: torch.dtype = torch.int64) -> Tensor:
    return send(torch.tensor(values, dtype=dtype), device)


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """To the device; from pinned memory, so that the host goes on while the forward before it still runs."""
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)
