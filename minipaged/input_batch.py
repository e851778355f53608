"""The same batch, as tensors on the model's device.

    Batch (lists of integers, bookkeeping)  --to_device-->  InputBatch (tensors, the model)

    | token_ids | positions | slot_mapping | logits_indices | query_start_loc | seq_lens | block_tables |

All of them lie in one piece of memory, each on a border of 16 bytes, as kernels like it: one copy takes them to a GPU,
from pinned memory, which nobody has to wait for. Only block tables are padded, to the longest of the batch, with zeros
that nobody reads: sequence s has seq_lens[s] keys and they fill its first blocks. Lengths that decide the shape of the
work stay plain integers. (From level 01.)"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .batch import Batch


@dataclass(frozen=True)
class InputBatch:
    """T tokens of S sequences, of which R rows are sampled."""

    token_ids: Tensor  # [T]
    positions: Tensor  # [T]
    slot_mapping: Tensor  # [T], -1 writes nothing
    query_start_loc: Tensor  # [S + 1]
    seq_lens: Tensor  # [S]
    block_tables: Tensor  # [S, longest]
    logits_indices: Tensor  # [R]
    max_query_len: int
    max_seq_len: int


class Shape(NamedTuple):
    """Of the tensors of a batch; width: columns of its block tables."""

    num_tokens: int
    num_seqs: int
    width: int
    num_rows: int

    @property
    def longs(self) -> list[int]:
        """Numbers of each tensor of 64 bits, and behind each those that are missing to a border."""
        sizes = self.num_tokens, self.num_tokens, self.num_tokens, self.num_rows
        return [n for size in sizes for n in (size, -size % 2)]

    @property
    def ints(self) -> list[int]:
        """The same of 32 bits."""
        sizes = self.num_seqs + 1, self.num_seqs, self.num_seqs * self.width
        return [n for size in sizes for n in (size, -size % 4)]


def to_device(batch: Batch, device: torch.device) -> InputBatch:
    longest = max(map(len, batch.block_tables), default=0)
    shape = Shape(len(batch.token_ids), len(batch.seq_lens), longest, len(batch.logits_indices))
    host = new_memory(shape, device)
    fill(host, shape, batch)
    max_query_len = max((end - start for start, end in pairwise(batch.query_start_loc)), default=0)
    return view(host.to(device, non_blocking=True), shape, max_query_len, max(batch.seq_lens, default=0))


def new_memory(shape: Shape, device: torch.device) -> Tensor:
    """On the host, for all tensors of a batch that goes to this device; zeros."""
    pin = device.type == "cuda"  # only pinned memory is copied without waiting
    return torch.zeros(sum(shape.longs) + sum(shape.ints) // 2, dtype=torch.int64, pin_memory=pin)


def view(memory: Tensor, shape: Shape, max_query_len: int, max_seq_len: int) -> InputBatch:
    """The memory as tensors."""
    longs, ints = shape.longs, shape.ints
    *wide, rest = torch.split_with_sizes(memory, [*longs, sum(ints) // 2])
    narrow = torch.split_with_sizes(rest.view(torch.int32), ints)
    (tokens, positions, slots, rows), (starts, lens, tables) = wide[::2], narrow[::2]
    tables = tables.view(shape.num_seqs, shape.width)
    return InputBatch(tokens, positions, slots, starts, lens, tables, rows, max_query_len, max_seq_len)


def fill(memory: Tensor, shape: Shape, batch: Batch) -> None:
    """memory: the host's."""
    numbers, (*_, num_tables, gap) = memory.numpy(), shape.ints
    halves = numbers.view(np.int32)
    put(numbers, shape.longs, batch.token_ids, batch.positions, batch.slot_mapping, batch.logits_indices)
    put(halves[2 * sum(shape.longs) :], shape.ints, batch.query_start_loc, batch.seq_lens)
    tables = halves[len(halves) - gap - num_tables : len(halves) - gap].reshape(shape.num_seqs, shape.width)
    for row, table in zip(tables, batch.block_tables, strict=True):
        row[: len(table)] = table


def put(numbers: NDArray[Any], sizes: list[int], *lists: list[int]) -> None:
    """One list behind the other, each on a border."""
    start = 0
    for size, gap, values in zip(sizes[::2], sizes[1::2], lists, strict=False):
        numbers[start : start + size] = values
        start += size + gap
