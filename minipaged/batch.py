"""A step is a list of chunks: whose pending tokens to run, and how many. Packed, it is flat and owes nobody anything.

    Plan    [ (A, 3)  (B, 1)  (C, 2 + drafts x y) ]      filled in by the scheduler; drafts from level 05 on
    Batch   A4 A5 A6 | B9 | C7 C8 x y                    token_ids, positions, slot_mapping   [T]
            0        | 3  | 4         | 8                query_start_loc: where each begins   [S + 1]
                   ^    ^      ^  ^ ^                    logits_indices: the sampled rows     [R]

A chunk that does not reach its sequence's end has no row: there is nothing to sample yet. Drafts are no tokens of the
sequence, only guesses at what comes next: each gets a row, which says whether the next guess was right. Invariant: a
Batch is a copy. Sequences may grow or go while it runs; it does not notice. (From level 01.)"""

import sys
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from .sampling_params import SamplingParams
from .sequence import Sequence

NO_TOKEN = -1  # what `sample` says of a row of NaN


class Chunk(NamedTuple):
    """Run the next `num_tokens` pending tokens of `seq`, then `drafts`: guesses at what follows them."""

    seq: Sequence
    num_tokens: int
    drafts: tuple[int, ...] = ()

    @property
    def reaches_end(self) -> bool:
        """Only then is there something to sample. (Asked before `advance`.)"""
        return self.num_tokens == self.seq.num_pending


@dataclass
class Plan:
    """A decision in the making: what is left to give away, and who got what."""

    budget: int = sys.maxsize  # tokens still to give away
    max_chunk_len: int = sys.maxsize
    chunks: list[Chunk] = field(default_factory=list)
    crowded: bool = False  # somebody found no room

    @property
    def is_open(self) -> bool:
        return self.budget > 0 and not self.crowded

    def share(self, seq: Sequence) -> int:
        """How many of its pending tokens seq may run in this step."""
        return min(seq.num_pending, self.budget, self.max_chunk_len)

    def add(self, seq: Sequence) -> int:
        """Give seq its share, and say how many tokens that is."""
        if num_tokens := self.share(seq):
            self.chunks.append(Chunk(seq, num_tokens))
            self.budget -= num_tokens
        return num_tokens


class Row(NamedTuple):
    """What the sampler must know of one row of logits: the token it draws will be at `position`."""

    params: SamplingParams
    seed: int
    position: int


class Batch(NamedTuple):
    """T tokens of S sequences, of which R rows are sampled; plain integers."""

    token_ids: list[int]  # [T]
    positions: list[int]  # [T]
    slot_mapping: list[int]  # [T], where each token's keys and values go; -1 writes nothing
    query_start_loc: list[int]  # [S + 1]
    seq_lens: list[int]  # [S], keys each sequence sees in this step, those it writes included
    block_tables: list[list[int]]  # [S, ...]
    logits_indices: list[int]  # [R], into T
    row_start_loc: list[int]  # [S + 1], into R
    rows: list[Row]  # [R]


def pack(chunks: SequenceOf[Chunk], block_size: int) -> Batch:
    """Flatten chunks into one ragged batch, without padding between sequences."""
    batch = Batch([], [], [], [0], [], [], [], [0], [])
    for chunk in chunks:
        seq, start = chunk.seq, chunk.seq.num_computed_tokens
        token_ids = [*seq.tokens[start : start + chunk.num_tokens], *chunk.drafts]
        num_rows = 1 + len(chunk.drafts) if chunk.reaches_end else 0
        pack_tokens(batch, token_ids, start, seq.block_table, block_size, Row(seq.params, seq.seed, 0), num_rows)
    return batch


def pack_tokens(
    batch: Batch, token_ids: list[int], start: int, block_table: list[int], block_size: int, row: Row, num_rows: int
) -> None:
    """Add one sequence's tokens, from position `start` on; the last num_rows of them are sampled, as `row` says."""
    end, table = start + len(token_ids), list(block_table)
    batch.token_ids.extend(token_ids)
    batch.positions.extend(range(start, end))
    batch.slot_mapping.extend(table[p // block_size] * block_size + p % block_size for p in range(start, end))
    batch.query_start_loc.append(len(batch.token_ids))
    batch.seq_lens.append(end)
    batch.block_tables.append(table)
    batch.logits_indices.extend(range(len(batch.token_ids) - num_rows, len(batch.token_ids)))
    batch.rows.extend(row._replace(position=position) for position in range(end - num_rows + 1, end + 1))
    batch.row_start_loc.append(len(batch.rows))


def unpack(batch: Batch, sampled: list[int]) -> list[list[int]]:
    """One list per chunk: what its rows said, nothing if it did not reach its end."""
    return [sampled[start:end] for start, end in pairwise(batch.row_start_loc)]


def advance(chunks: SequenceOf[Chunk], new_tokens: list[list[int]]) -> None:
    """Move every sequence past what was computed; whoever reached its end gains tokens, up to one that ends it."""
    for chunk, token_ids in zip(chunks, new_tokens, strict=True):
        seq = chunk.seq
        num_tokens = len(seq.tokens)
        for token_id in token_ids:
            if seq.finished:
                break
            if token_id == NO_TOKEN:
                seq.fail(f"the model's logits are NaN at position {len(seq.tokens) - 1}")
            else:
                seq.append(token_id)
        # of new tokens all but the newest were drafts, and have their keys already
        seq.num_computed_tokens += chunk.num_tokens + max(0, len(seq.tokens) - num_tokens - 1)
