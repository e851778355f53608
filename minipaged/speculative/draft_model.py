"""A smaller model reads everything the large one reads, and speaks first.

    the target will run     [ c ]                    and the drafts that this returns
    1st forward             [ c ]  -> x              over the very same chunks, whatever they are
    2nd                     [ x ]  -> y
    3rd                     [ y ]  -> z
    4th                     [ z ]                    nothing to say; it leaves z's keys

Its KV cache has blocks of its own shape under the same numbers: where the target has the keys of a token, so has the
draft model, also in blocks found by their prefix, after preemption, and after a guess that was right to its end (the
4th forward). So there is nothing to catch up and nothing to remember: what was wrong is overwritten when the right
token is run. Each draft of a random request is drawn from the draft model's own processed distribution, which goes
along: verification needs it. Invariant: lengths[i] tokens cost lengths[i] + 1 forwards, shared by all sequences.
(Speculative decoding, Leviathan et al. 2023, section 2.1; from level 05.)"""

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..batch import NO_TOKEN, Batch, Chunk, Row, pack, pack_tokens, row_after
from ..processors import process
from ..runner import ModelRunner
from ..sampling import draw, likeliest
from ..sequence import Sequence
from .drafter import Drafter, Guess
from .length import DraftLength

DRAFT = 0x5DEECE66D1CE4E5B  # a stream of random numbers of its own: whether a draft is kept must not depend on it


@dataclass
class Ahead:
    """How far one sequence has run ahead of what is known."""

    seq: Sequence
    length: int
    token_ids: list[int] = field(default_factory=list)
    probs: list[Tensor] = field(default_factory=list)  # [V] each

    @property
    def row(self) -> Row:
        """Of the token to draw next."""
        return row_after(self.seq, tuple(self.token_ids))

    @property
    def is_done(self) -> bool:
        return len(self.token_ids) == self.length

    @property
    def guess(self) -> Guess:
        probs = self.probs[: len(self.token_ids)]  # after a row of NaN there is one too many
        return Guess(tuple(self.token_ids), torch.stack(probs) if probs else None)


class DraftModel(Drafter):
    """model: any with the target's vocabulary; num_blocks and block_size are the target's."""

    def __init__(self, model: ModelRunner, num_blocks: int, block_size: int, length: DraftLength):
        super().__init__(length)
        self.model, self.block_size = model, block_size
        self.kv_cache = model.new_kv_cache(num_blocks, block_size)

    def reach(self, seq: Sequence, limit: int) -> int:
        return limit

    def propose(self, chunks: SequenceOf[Chunk], lengths: list[int]) -> list[Guess]:
        runs = [Ahead(chunk.seq, length) for chunk, length in zip(chunks, lengths, strict=True)]
        batch = pack(chunks, self.block_size)
        logits = self.model(batch, self.kv_cache)
        going = [run for run in runs if run.length]
        rows = [batch.row_start_loc[i] for i, run in enumerate(runs) if run.length]
        logits = logits[rows]
        while going:
            going = speak(going, logits)
            logits = self.model(self.pack_newest(going), self.kv_cache)
            going = [run for run in going if not run.is_done]
        return [run.guess for run in runs]

    def pack_newest(self, runs: SequenceOf[Ahead]) -> Batch:
        """Everybody's newest draft; whoever is done has no row."""
        batch = Batch.empty()
        for run in runs:
            position = len(run.seq.tokens) + len(run.token_ids) - 1
            rows = [] if run.is_done else [run.row]
            pack_tokens(batch, run.token_ids[-1:], position, run.seq.block_table, self.block_size, rows)
        return batch


def speak(runs: list[Ahead], logits: Tensor) -> list[Ahead]:
    """One token more for each, from logits [N, V]; returns whoever did (a row of NaN says nothing)."""
    rows = [run.row._replace(seed=run.seq.seed ^ DRAFT) for run in runs]
    logits = process(logits, rows)
    tokens = likeliest(logits)
    random = [i for i, row in enumerate(rows) if not row.params.greedy]
    tokens[random], weights = draw(logits[random], [rows[i] for i in random])
    for i, probs in zip(random, weights / weights.sum(-1, keepdim=True), strict=True):
        runs[i].probs.append(probs)
    able = [(run, token) for run, token in zip(runs, tokens.tolist(), strict=True) if token != NO_TOKEN]
    for run, token in able:
        run.token_ids.append(token)
    return [run for run, _ in able]
