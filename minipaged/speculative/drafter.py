"""A drafter guesses what comes next; guesses live on leftovers, and nobody gives way for them.

    plan      (A, 1)   (B, 1)   (C, 40 of 90)   (D, 7)        A, B and D reach their ends
    wanted    3        3        -               3             as many as `length` says for each
    reach     3        1        -               0             the drafter has no more to say
    granted   3        1        -               0             room in budget, pool and max_len: set aside before
    drafts    x y z    v                                      the drafter speaks

The null drafter never has anything to say, and an engine with it decodes plainly. Invariant: no sequence is preempted
or kept waiting for the sake of a guess: drafts get what is left when everybody has been served, and blocks that they
do not fill are given back in the same step (`BlockManager.settle`). Where a grammar says what an answer looks like,
no guess breaks it: a draft model draws under the same rows, so what it draws is only cut behind the answer's end; what
n-grams find is cut where it stops fitting. (From level 05.)"""

from collections.abc import Sequence as SequenceOf
from typing import TYPE_CHECKING, NamedTuple

from ..batch import Chunk, Plan
from ..blocks import BlockManager
from ..sequence import Sequence
from .length import DraftLength

if TYPE_CHECKING:
    from torch import Tensor


class Guess(NamedTuple):
    """What may follow one chunk. probs [k, V]: the distribution that each of k tokens was drawn from, summing to 1;
    None if nothing was drawn."""

    token_ids: tuple[int, ...] = ()
    probs: "Tensor | None" = None


class Drafter:
    """The null drafter: no guess is always allowed. Others override `reach` and `propose`."""

    def __init__(self, length: DraftLength):
        self.length = length

    def reach(self, seq: Sequence, limit: int) -> int:
        """How many tokens beyond seq's last could be guessed, at most limit."""
        return 0

    def propose(self, chunks: SequenceOf[Chunk], lengths: list[int]) -> list[Guess]:
        """A guess for each chunk, as long as lengths says or shorter; room for it is reserved."""
        return [Guess()] * len(chunks)


def speculate(plan: Plan, drafter: Drafter, blocks: BlockManager) -> list[Guess]:
    """Let every chunk that reaches its end run ahead on a guess."""
    lengths = [set_aside(chunk, plan, drafter, blocks) for chunk in plan.chunks]
    guesses = drafter.propose(plan.chunks, lengths)
    guesses = [cut(guess, chunk.seq) for guess, chunk in zip(guesses, plan.chunks, strict=True)]
    for i, (chunk, guess) in enumerate(zip(plan.chunks, guesses, strict=True)):
        if num_unused := lengths[i] - len(guess.token_ids):
            plan.budget += num_unused
            blocks.trim(chunk.seq, chunk.seq.num_computed_tokens + chunk.num_tokens + len(guess.token_ids))
        plan.chunks[i] = chunk._replace(drafts=guess.token_ids)
    return guesses


def cut(guess: Guess, seq: Sequence) -> Guess:
    """Up to the first token that seq's grammar forbids: the rows behind it would have no meaning."""
    if not seq.grammar or not guess.token_ids:
        return guess
    n = seq.grammar.count_allowed(seq.tokens[seq.num_prompt_tokens :], guess.token_ids)
    return Guess(guess.token_ids[:n], None if guess.probs is None else guess.probs[:n])


def set_aside(chunk: Chunk, plan: Plan, drafter: Drafter, blocks: BlockManager) -> int:
    """Reserve what is left of budget and blocks for the drafts of one chunk; returns for how many."""
    seq = chunk.seq
    if not chunk.reaches_end:
        return 0
    room = min(plan.budget, plan.max_chunk_len - chunk.num_tokens, seq.max_len - len(seq.tokens) - 1)
    length = drafter.reach(seq, limit) if (limit := min(drafter.length.of(seq), room)) > 0 else 0
    while length and not blocks.reserve(seq, chunk.num_tokens + length):
        length -= 1
    plan.budget -= length
    return length
