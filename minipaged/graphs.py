"""A step in which everybody writes one token is the same launches every time: recorded once, then replayed as one.

    eager     launch launch launch ...      some hundred launches from Python, each a few microseconds of the host's
    replay    =======================       one call, whatever the model's depth: what is left is the GPU's own time

A recording has its rows and addresses fixed, so a batch of S sequences takes the next size up, and its integers are
copied to where the recording reads them; table columns come in few sizes too, so that short contexts pay for no long
ones:

    S = 5 of size 8     [ a b c d e | . . . ]     . : token 0 at position 0, slot -1, 0 keys
                                                  written nowhere, attends to nothing, its logits are cut off

Prompts, chunks, drafts and rows that are only measured change their shape from step to step: they run eagerly, as does
whatever has more rows than the largest size. A size is recorded when it is first needed: that step runs twice, as it
is, so that every kernel is compiled, and from its recording, and writes the same keys and values to the same slots.
Invariants: padding touches no memory but its own; logits are the recordings' until the next call. (From level 01, on a
GPU; what records there is cuda_recorder.py.)"""

from collections.abc import Callable
from typing import Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from .batch import Batch
from .clock import Clock
from .config import EngineConfig
from .input_batch import InputBatch, Shape, fill, new_memory, to_device, view
from .kv_cache import KVCache

Model = Callable[[InputBatch, KVCache], Tensor]
Replay = Callable[[], object]

NARROWEST, WIDER = 16, 4  # columns of block tables: 16, 64, 256, ...


class Recorder(Protocol):
    """How work is recorded, and what the recordings' own memory comes to."""

    num_bytes: int

    def __call__(self, work: Callable[[], object]) -> Replay: ...


class Eager:
    """Every launch anew; clock: of the time in the model."""

    num_bytes = 0  # kept beyond a step

    def __init__(self, model: Model, device: torch.device, clock: Clock):
        self.model, self.device, self.clock = model, device, clock

    def __call__(self, batch: Batch, kv_cache: KVCache) -> Tensor:
        """Logits [R, V]"""
        inputs = to_device(batch, self.device)
        with self.clock:
            return self.model(inputs, kv_cache)

    def reserve(self, trial: KVCache) -> None:
        """Nothing to reserve."""


def choose_forward(eager: Eager, config: EngineConfig, *, can_record: bool, vocab_size: int) -> "Eager | Graphs":
    """Recordings where they can be had: on a GPU, by Triton's kernels, of one rank, of a model whose work does not
    depend on what its tokens say, as that of experts does."""
    whole = config.num_ranks == 1 and not config.shares_experts
    if (config.device, config.attention_backend) != ("cuda", "triton") or config.enforce_eager:
        return eager
    if not whole or not can_record:
        return eager
    from .cuda_recorder import CudaRecorder

    return Graphs(eager, config.max_num_seqs, vocab_size, CudaRecorder(eager.device))


class Graphs:
    """eager: who runs what is not recorded. most: rows of the largest recording."""

    def __init__(self, eager: Eager, most: int, vocab_size: int, record: Recorder):
        self.eager, self.sizes, self.record = eager, choose_sizes(most), record
        self.recordings: WeakKeyDictionary[KVCache, dict[tuple[int, int], Recording]] = WeakKeyDictionary()
        self.logits = torch.empty(most, vocab_size, device=eager.device)  # [most, V], of whichever was replayed last

    def __call__(self, batch: Batch, kv_cache: KVCache) -> Tensor:
        """Logits [R, V]; a recording's are overwritten by the next call."""
        if is_decode(batch) and len(batch.seq_lens) <= self.sizes[-1]:
            return self.replay(batch, kv_cache)
        return self.eager(batch, kv_cache)

    def replay(self, batch: Batch, kv_cache: KVCache) -> Tensor:
        num_seqs, device = len(batch.seq_lens), self.eager.device
        size = next(size for size in self.sizes if size >= num_seqs)
        width = choose_width(max(map(len, batch.block_tables)))
        known = self.recordings.setdefault(kv_cache, {})
        recording = known.get((size, width)) or Recording(size, width, kv_cache.block_size, device)
        recording.load(batch)
        if (size, width) not in known:
            recording.replay = self.record(self.work(recording.inputs, kv_cache))
            known[size, width] = recording  # and not before: recording may fail
        with self.eager.clock:
            recording.replay()
        return self.logits[:num_seqs]

    def work(self, inputs: InputBatch, kv_cache: KVCache) -> Callable[[], object]:
        return lambda: self.logits[: len(inputs.seq_lens)].copy_(self.eager.model(inputs, kv_cache))

    @property
    def num_bytes(self) -> int:
        """What recordings have set aside, beside the logits."""
        return self.record.num_bytes

    @torch.inference_mode()
    def reserve(self, trial: KVCache) -> None:
        """Record the largest size once, over a memory that is not used, so that what it takes is known; smaller ones
        find room in it."""
        most = self.sizes[-1]
        nothing, ends = [0] * most, list(range(most + 1))
        batch = Batch(nothing, nothing, [-1] * most, ends, nothing, [[]] * most, ends[:-1], ends, [], [])
        self.trial = trial  # kept, as its recording keeps the memory
        self.replay(batch, trial)


class Recording:
    """Of so many rows, with tables of so many columns; `replay` runs what it was made of again."""

    replay: Replay

    def __init__(self, size: int, width: int, block_size: int, device: torch.device):
        self.shape = Shape(num_tokens=size, num_seqs=size, width=width, num_rows=size)
        self.host = new_memory(self.shape, device)
        self.device = self.host.to(device, copy=True)
        self.inputs = view(self.device, self.shape, max_query_len=1, max_seq_len=width * block_size)

    def load(self, batch: Batch) -> None:
        """Where the recording reads: the batch, then padding. (The host has waited for the copy before, as it has for
        the tokens that came of it.)"""
        fill(self.host, self.shape, pad(batch, self.shape.num_seqs))
        self.device.copy_(self.host, non_blocking=True)


def is_decode(batch: Batch) -> bool:
    """One token a sequence, and a row for each: all that is asked of a step once its prompts are read."""
    num_seqs = len(batch.seq_lens)
    return 0 < num_seqs == len(batch.token_ids) == len(batch.logits_indices) == len(batch.rows)


def choose_sizes(most: int) -> list[int]:
    """1, 2, 4, then every eighth: at most seven rows are padding."""
    return sorted({*(size for size in (1, 2, 4) if size < most), *range(8, most, 8), most})


def choose_width(longest: int) -> int:
    width = NARROWEST
    while width < longest:
        width *= WIDER
    return width


def pad(batch: Batch, size: int) -> Batch:
    """With sequences that have one token, no slot and no keys."""
    missing = size - len(batch.seq_lens)
    nothing, indices = [0] * missing, list(range(size))
    return batch._replace(
        token_ids=batch.token_ids + nothing,
        positions=batch.positions + nothing,
        slot_mapping=batch.slot_mapping + [-1] * missing,
        query_start_loc=[*indices, size],
        seq_lens=batch.seq_lens + nothing,
        block_tables=batch.block_tables + [[]] * missing,
        logits_indices=indices,
    )
