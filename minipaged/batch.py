"""A step is a list of chunks: whose pending tokens to run, and how many. Packed, it is flat and owes nobody anything.

    Plan    [ (A, 3)  (B, 1)  (C, 2 + drafts x y) ]      filled in by the scheduler; drafts from level 05 on
    Batch   A4 A5 A6 | B9 | C7 C8 x y                    token_ids, positions, slot_mapping   [T]
            0        | 3  | 4         | 8                query_start_loc: where each begins   [S + 1]
                   ^    ^      ^  ^ ^                    logits_indices: the sampled rows     [R + Q]

A chunk that does not reach its sequence's end has no row: there is nothing to sample yet. Drafts are no tokens of the
sequence, only guesses at what comes next: each gets a row, which says whether the next guess was right. Where logprobs
of a prompt are asked for, its tokens get rows too, behind all others: nothing is drawn from them. Invariant: a Batch is
a copy. Sequences may grow or go while it runs; it does not notice. (From level 01.)"""

import sys
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from .sampling_params import SamplingParams
from .sequence import Scores, Sequence

NO_TOKEN = -1  # what `sample` says of a row of NaN, or one that leaves nothing to say


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
    seats: int = sys.maxsize  # chunks that it may have
    chunks: list[Chunk] = field(default_factory=list)
    crowded: bool = False  # somebody found no room

    @property
    def is_open(self) -> bool:
        return self.budget > 0 and not self.is_full and not self.crowded

    @property
    def is_full(self) -> bool:
        return len(self.chunks) >= self.seats

    def share(self, seq: Sequence) -> int:
        """How many of its pending tokens seq may run in this step."""
        return 0 if self.is_full else min(seq.num_pending, self.budget, self.max_chunk_len)

    def add(self, seq: Sequence) -> int:
        """Give seq its share, and say how many tokens that is."""
        if num_tokens := self.share(seq):
            self.chunks.append(Chunk(seq, num_tokens))
            self.budget -= num_tokens
        return num_tokens


class Row(NamedTuple):
    """What the sampler must know of one row of logits: the token it draws will be at `position`.

    prompt, output: the tokens before, drafts among the output; left out where no penalty asks for them.
    held_back: what must not be said yet, because of min_tokens.
    permitted: a bit for each token that a grammar allows, the lowest of the first byte for token 0; None: all."""

    params: SamplingParams
    seed: int
    position: int
    prompt: tuple[int, ...] = ()
    output: tuple[int, ...] = ()
    held_back: frozenset[int] = frozenset()
    permitted: bytes | None = None

    @property
    def has_wishes(self) -> bool:
        """Whether its logits are to be changed before temperature and cuts."""
        return self.params.penalised or self.params.biased or bool(self.held_back) or self.permitted is not None


def row_after(seq: Sequence, drafts: tuple[int, ...] = ()) -> Row:
    """The row of the token that follows seq's tokens and drafts."""
    params, n = seq.params, seq.num_prompt_tokens
    position = len(seq.tokens) + len(drafts)
    row = Row(params, seq.seed, position)
    if params.penalised:
        row = row._replace(prompt=tuple(seq.tokens[:n]), output=(*seq.tokens[n:], *drafts))
    if seq.grammar:
        row = row._replace(permitted=seq.grammar.permitted([*seq.tokens[n:], *drafts]))
    if position - n < params.min_tokens:
        row = row._replace(held_back=seq.eos_token_ids.union(params.stop_token_ids))
    return row


class Known(NamedTuple):
    """A row of which nothing is drawn: what follows is known, and only how likely it was is asked."""

    chunk: int
    token_id: int
    num_logprobs: int


class Measured(NamedTuple):
    """What the model thought of a chunk's prompt tokens, and of those that it gained; nothing where nobody asked."""

    prompt: SequenceOf[Scores] = ()
    gained: SequenceOf[Scores] = ()


class Batch(NamedTuple):
    """T tokens of S sequences, of which R rows are sampled and Q more measured; plain integers."""

    token_ids: list[int]  # [T]
    positions: list[int]  # [T]
    slot_mapping: list[int]  # [T], where each token's keys and values go; -1 writes nothing
    query_start_loc: list[int]  # [S + 1]
    seq_lens: list[int]  # [S], keys each sequence sees in this step, those it writes included
    block_tables: list[list[int]]  # [S, ...]
    logits_indices: list[int]  # [R + Q], into T
    row_start_loc: list[int]  # [S + 1], into R
    rows: list[Row]  # [R]
    known: list[Known]  # [Q]

    @classmethod
    def empty(cls) -> "Batch":
        return cls([], [], [], [0], [], [], [], [0], [], [])


def pack(chunks: SequenceOf[Chunk], block_size: int) -> Batch:
    """Flatten chunks into one ragged batch, without padding between sequences."""
    batch, measured = Batch.empty(), list[int]()
    for i, (seq, num_tokens, drafts) in enumerate(chunks):
        start = seq.num_computed_tokens
        token_ids = [*seq.tokens[start : start + num_tokens], *drafts]
        rows = [row_after(seq, drafts[:j]) for j in range(len(drafts) + 1)] if chunks[i].reaches_end else []
        for position in positions_to_measure(seq, start, start + num_tokens) if seq.num_unscored else ():
            measured.append(len(batch.token_ids) + position - start)
            batch.known.append(Known(i, seq.tokens[position + 1], seq.params.prompt_logprobs or 0))
        pack_tokens(batch, token_ids, start, seq.block_table, block_size, rows)
    batch.logits_indices.extend(measured)
    return batch


def positions_to_measure(seq: Sequence, start: int, end: int) -> range:
    """Those in [start, end) that are followed by a prompt token which has no score yet: each has its turn once."""
    return range(max(start, len(seq.prompt_scores) - 1), min(end, seq.num_prompt_tokens - 1))


def pack_tokens(
    batch: Batch, token_ids: list[int], start: int, block_table: list[int], block_size: int, rows: list[Row]
) -> None:
    """Add one sequence's tokens, from position `start` on; the last len(rows) of them are sampled."""
    end, table = start + len(token_ids), list(block_table)
    batch.token_ids.extend(token_ids)
    batch.positions.extend(range(start, end))
    batch.slot_mapping.extend(table[p // block_size] * block_size + p % block_size for p in range(start, end))
    batch.query_start_loc.append(len(batch.token_ids))
    batch.seq_lens.append(end)
    batch.block_tables.append(table)
    batch.logits_indices.extend(range(len(batch.token_ids) - len(rows), len(batch.token_ids)))
    batch.rows.extend(rows)
    batch.row_start_loc.append(len(batch.rows))


def unpack(batch: Batch, sampled: list[int]) -> list[list[int]]:
    """One list per chunk: what its rows said, nothing if it did not reach its end."""
    return [sampled[start:end] for start, end in pairwise(batch.row_start_loc)]


def advance(
    chunks: SequenceOf[Chunk], new_tokens: list[list[int]], measured: SequenceOf[Measured] | None = None
) -> None:
    """Move every sequence past what was computed; whoever reached its end gains tokens, up to one that ends it."""
    measured = measured or [Measured()] * len(chunks)
    for chunk, token_ids, scores in zip(chunks, new_tokens, measured, strict=True):
        seq = chunk.seq
        num_tokens = len(seq.tokens)
        for token_id in token_ids:
            if seq.finished:
                break
            if token_id == NO_TOKEN:
                seq.fail(silence(seq))
            else:
                seq.append(token_id)
        num_gained = len(seq.tokens) - num_tokens
        seq.prompt_scores += scores.prompt
        seq.scores += scores.gained[:num_gained]
        # of new tokens all but the newest were drafts, and have their keys already
        seq.num_computed_tokens += chunk.num_tokens + max(0, num_gained - 1)


def silence(seq: Sequence) -> str:
    """Why no token came."""
    where = f"at position {len(seq.tokens) - 1}"
    if seq.grammar:
        return f"the model's logits are NaN, or its grammar leaves nothing to say, {where}"
    return f"the model's logits are NaN {where}"
