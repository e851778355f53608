"""How far to guess ahead: always as far, or as far as guesses have lately been right.

    k = 4     drafted   4     4     2     1     2     4        adaptive
              right     4     1     0     1     2     4
                        full  cut back to what was right, plus one; doubled after a full hit

A wrong guess costs a row of the next forward, a missing one costs a whole forward: where rows are nearly free (few
sequences, memory-bound) long guesses pay, where they are not (a full batch on a CPU) short ones do. A request may ask
for fewer than the engine's num_speculative_tokens, or for none. Invariant: 0 <= of(seq) <= k. (From level 05.)"""

from collections.abc import Sequence as SequenceOf
from weakref import WeakKeyDictionary

from ..batch import Chunk
from ..sequence import Sequence


class DraftLength:
    """Always k, or what the request asks for if that is less."""

    def __init__(self, k: int):
        self.k = k

    def of(self, seq: Sequence) -> int:
        """How many tokens to guess after seq's last."""
        wanted = seq.params.num_speculative_tokens
        return self.k if wanted is None else min(wanted, self.k)

    def learn(self, chunks: SequenceOf[Chunk], new_tokens: SequenceOf[list[int]]) -> None:
        """Of what each chunk drafted, all but the last of its new tokens were right: here nothing follows from it."""


class AdaptiveLength(DraftLength):
    """Doubled after a guess that was right to its end; otherwise what was right, plus one."""

    def __init__(self, k: int):
        super().__init__(k)
        self.lengths: WeakKeyDictionary[Sequence, int] = WeakKeyDictionary()

    def of(self, seq: Sequence) -> int:
        return min(super().of(seq), self.lengths.get(seq, self.k))

    def learn(self, chunks: SequenceOf[Chunk], new_tokens: SequenceOf[list[int]]) -> None:
        for (seq, _, drafts), token_ids in zip(chunks, new_tokens, strict=True):
            if drafts:
                num_right = len(token_ids) - 1
                longer = max(2 * num_right, self.lengths.get(seq, self.k))
                self.lengths[seq] = longer if num_right == len(drafts) else num_right + 1
