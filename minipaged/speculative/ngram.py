"""What followed the last time the text ended like this?

    tokens    1 3 6 [2 3] 4 1 [2 3]        n = 2: the end "2 3" stood here before, and "4 1 2" followed
    drafts    4 1 2

Prompt lookup (Saxena 2023): no model, only a dictionary from every n-gram to the place where it was first followed by
something. Longest n-grams are asked first, since the more words agree the likelier the next ones do. It pays where an
answer repeats its prompt or itself: editing, quoting, extracting. An n-gram's name is a number made of two sums over
the text (Karp and Rabin 1987), so that a long one costs no more than a short one:

    sum(i)    t0 b^(i-1) + t1 b^(i-2) + ... + t(i-1)  mod p        name of the n tokens before i: sum(i) - sum(i-n) b^n

Two n-grams of one name (a chance of 2^-61) would make a bad guess, no more. Invariant: a token is indexed once in a
sequence's life, and the text's end looked up once a step; either asks for at most 16 sizes and then every doubling,
however long the text and whatever prompt_lookup_max. (From level 05.)"""

from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf
from weakref import WeakKeyDictionary

from ..batch import Chunk
from ..sequence import Sequence
from .drafter import Drafter, Guess
from .length import DraftLength

PRIME, BASE = 2**61 - 1, 0x9E3779B97F4A7C15 % (2**61 - 1)
NUM_SIZES = 16  # one after the other, from the shortest on; of what is longer only every doubling is tried


def choose_sizes(shortest: int, longest: int) -> list[int]:
    """The n-grams to look up, longest first."""
    steps = [*range(NUM_SIZES), *(NUM_SIZES << i for i in range(longest.bit_length()))]
    return sorted({longest, *(shortest + step for step in steps if shortest + step < longest)}, reverse=True)


class NgramIndex:
    """Where each n-gram of a growing text, of `shortest` to `longest` tokens, was first followed."""

    def __init__(self, shortest: int, longest: int):
        self.powers = {size: pow(BASE, size, PRIME) for size in choose_sizes(shortest, longest)}
        self.sums = [0]  # of the first i tokens
        self.followed_at: dict[tuple[int, int], int] = {}
        self.found: tuple[int, ...] = ()  # by the last look-up

    def update(self, tokens: list[int]) -> None:
        """Index what has been followed since the last call."""
        for end in range(len(self.sums), len(tokens) + 1):
            if end > 1:
                for name in self.names(end - 1):
                    self.followed_at.setdefault(name, end - 1)
            self.sums.append((self.sums[-1] * BASE + tokens[end - 1] + 1) % PRIME)

    def names(self, end: int) -> Iterator[tuple[int, int]]:
        """Of the n-grams that end there, longest first."""
        for size, power in self.powers.items():
            if size <= end:
                yield size, (self.sums[end] - self.sums[end - size] * power) % PRIME

    def follow(self, tokens: list[int], limit: int) -> tuple[int, ...]:
        """Up to limit tokens that stood behind the longest earlier match of the text's end; tokens are all indexed."""
        starts = (self.followed_at.get(name) for name in self.names(len(tokens)))
        start = next((start for start in starts if start is not None), len(tokens))
        self.found = tuple(tokens[start : start + limit])
        return self.found


class NgramDrafter(Drafter):
    """prompt_lookup_min and prompt_lookup_max: the shortest and longest n-gram that may match."""

    def __init__(self, shortest: int, longest: int, length: DraftLength):
        super().__init__(length)
        self.shortest, self.longest = shortest, longest
        self.indexes: WeakKeyDictionary[Sequence, NgramIndex] = WeakKeyDictionary()

    def reach(self, seq: Sequence, limit: int) -> int:
        return len(self.follow(seq, limit))

    def propose(self, chunks: SequenceOf[Chunk], lengths: list[int]) -> list[Guess]:
        """What `reach` has found."""
        return [Guess(self.indexes[chunk.seq].found[:n] if n else ()) for chunk, n in zip(chunks, lengths, strict=True)]

    def follow(self, seq: Sequence, limit: int) -> tuple[int, ...]:
        index = self.indexes.setdefault(seq, NgramIndex(self.shortest, self.longest))
        index.update(seq.tokens)
        return index.follow(seq.tokens, limit)
