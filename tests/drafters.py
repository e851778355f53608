"""Drafters that know too much, or nothing: what they guess must never change what is said."""

from random import Random

from minipaged.speculative.draft_model import DraftModel
from minipaged.speculative.drafter import Drafter, Guess
from minipaged.speculative.length import DraftLength
from minipaged.speculative.ngram import NgramDrafter


class Scripted(Drafter):
    """Guesses whatever `guess(seq, limit)` returns."""

    def __init__(self, length, guess):
        super().__init__(length)
        self.guess = guess

    def reach(self, seq, limit):
        return len(self.guess(seq, limit))

    def propose(self, chunks, lengths):
        return [Guess(tuple(self.guess(chunk.seq, n))) for chunk, n in zip(chunks, lengths, strict=True)]


def right(answer_to):
    """What will be said; answer_to(seq) is all of it."""

    def guess(seq, limit):
        start = len(seq.tokens) - seq.num_prompt_tokens
        return tuple(answer_to(seq)[start : start + limit])

    return guess


def wrong(answer_to, vocab_size):
    def guess(seq, limit):
        return tuple((token + 1) % vocab_size for token in right(answer_to)(seq, limit))

    return guess


def noise(vocab_size):
    """A die that shows the same for the same text."""

    def guess(seq, limit):
        rng = Random(f"{seq.tokens}")
        return tuple(rng.randrange(vocab_size) for _ in range(rng.randint(0, limit)))

    return guess


def scripted(make_guess):
    return lambda engine, answer_to: Scripted(engine.drafter.length, make_guess(answer_to, engine.desk.vocabulary.size))


def ngram(engine, answer_to):
    return NgramDrafter(1, 3, engine.drafter.length)


def drafting_with(make_model):
    """A draft model with a cache as poisoned as the target's may be."""

    def make(engine, answer_to):
        config = engine.config
        return DraftModel(make_model(engine), config.num_blocks, config.block_size, engine.drafter.length)

    return make


DRAFTERS = {
    "none": lambda engine, answer_to: Drafter(DraftLength(3)),
    "ngram": ngram,
    "perfect": scripted(lambda answer_to, size: right(answer_to)),
    "wrong": scripted(wrong),
    "random": scripted(lambda answer_to, size: noise(size)),
    "draft model": drafting_with(lambda engine: engine.model),
}
