"""The same batch, as tensors on the model's device.

    Batch (lists of integers, bookkeeping)  --to_device-->  InputBatch (tensors, the model)

Only block tables are padded, to the longest of the batch, with zeros that nobody reads: sequence s has seq_lens[s] keys
and they fill its first blocks. Lengths that decide the shape of the work stay plain integers. (From level 01.)"""

from dataclasses import dataclass
from itertools import pairwise

import torch
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


def to_device(batch: Batch, device: torch.device) -> InputBatch:
    def tensor(values: list[int] | list[list[int]], dtype: torch.dtype) -> Tensor:
        pin = device.type == "cuda"  # only pinned memory is copied without waiting
        return torch.tensor(values, dtype=dtype, pin_memory=pin).to(device, non_blocking=True)

    longest = max(map(len, batch.block_tables), default=0)
    return InputBatch(
        token_ids=tensor(batch.token_ids, torch.int64),
        positions=tensor(batch.positions, torch.int64),
        slot_mapping=tensor(batch.slot_mapping, torch.int64),
        query_start_loc=tensor(batch.query_start_loc, torch.int32),
        seq_lens=tensor(batch.seq_lens, torch.int32),
        block_tables=tensor([table + [0] * (longest - len(table)) for table in batch.block_tables], torch.int32),
        logits_indices=tensor(batch.logits_indices, torch.int64),
        max_query_len=max((end - start for start, end in pairwise(batch.query_start_loc)), default=0),
        max_seq_len=max(batch.seq_lens, default=0),
    )
