"""What followed the last time the text ended like this?

    tokens    1 3 6 [2 3] 4 1 [2 3]        n = 2: the end "2 3" stood here before, and "4 1 2" followed
    drafts    4 1 2

Prompt lookup (Saxena 2023): no model, only a dictionary from every n-gram to the place where it was first followed by
something. Longest n-grams are asked first, since the more words agree the likelier the next ones do. It pays where an
answer repeats its prompt or itself: editing, quoting, extracting. Invariant: a token is indexed once in a sequence's
life, so a step costs as many look-ups as there are lengths, however long the text. (From level 05.)"""

from collections.abc import Sequence as SequenceOf
from weakref import WeakKeyDictionary

from ..batch import Chunk
from ..sequence import Sequence
from .drafter import Drafter, Guess
from .length import DraftLength


class NgramIndex:
    """Where each n-gram of a growing text, of `shortest` to `longest` tokens, was first followed."""

    def __init__(self, shortest: int, longest: int):
        self.sizes = range(longest, shortest - 1, -1)
        self.followed_at: dict[tuple[int, ...], int] = {}
        self.num_indexed = 0

    def update(self, tokens: list[int]) -> None:
        """Index what has been followed since the last call."""
        for end in range(self.num_indexed + 1, len(tokens)):
            for size in self.sizes:
                if size <= end:
                    self.followed_at.setdefault(tuple(tokens[end - size : end]), end)
            self.num_indexed = end

    def follow(self, tokens: list[int], limit: int) -> tuple[int, ...]:
        """Up to limit tokens that stood behind the longest earlier match of the text's end."""
        for size in self.sizes:
            if (start := self.followed_at.get(tuple(tokens[-size:]))) is not None:
                return tuple(tokens[start : start + limit])
        return ()


class NgramDrafter(Drafter):
    """prompt_lookup_min and prompt_lookup_max: the shortest and longest n-gram that may match."""

    def __init__(self, shortest: int, longest: int, length: DraftLength):
        super().__init__(length)
        self.shortest, self.longest = shortest, longest
        self.indexes: WeakKeyDictionary[Sequence, NgramIndex] = WeakKeyDictionary()

    def reach(self, seq: Sequence, limit: int) -> int:
        return len(self.follow(seq, limit))

    def propose(self, chunks: SequenceOf[Chunk], lengths: list[int]) -> list[Guess]:
        return [Guess(self.follow(chunk.seq, n)) if n else Guess() for chunk, n in zip(chunks, lengths, strict=True)]

    def follow(self, seq: Sequence, limit: int) -> tuple[int, ...]:
        index = self.indexes.setdefault(seq, NgramIndex(self.shortest, self.longest))
        index.update(seq.tokens)
        return index.follow(seq.tokens, limit)
