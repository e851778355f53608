"""Texts that a grammar allows, drawn byte by byte; and whether it allows a text."""

from functools import cache
from random import Random

import numpy as np
import xgrammar
from hypothesis import reject

from minipaged.structured import read

END = 256  # the tokens are the 256 bytes, and this
CLOSING = [ord(one) for one in '"}]1el']  # what ends a value sooner or later


@cache
def compiler():
    words = [bytes([byte]) for byte in range(END)]
    info = xgrammar.TokenizerInfo([*words, b""], xgrammar.VocabType.RAW, vocab_size=END + 1, stop_token_ids=[END])
    return xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)


def compile_grammar(structure):
    return compiler().compile_grammar(read(structure))


def read_or_reject(structure):
    """For hypothesis: what is refused is no example."""
    try:
        return compile_grammar(structure)
    except ValueError:
        reject()


def say(compiled, rng: Random, length=60, limit=1500):
    """A text; from `length` bytes on what ends it is preferred. None if it does not end before `limit` bytes."""
    matcher, bits, said = xgrammar.GrammarMatcher(compiled), xgrammar.allocate_token_bitmask(1, END + 1), bytearray()
    while len(said) < limit:
        matcher.fill_next_token_bitmask(bits)
        allowed = np.flatnonzero(np.unpackbits(bits.numpy().view(np.uint8), bitorder="little")[: END + 1])
        assert len(allowed), f"stuck behind {bytes(said)!r}"
        ends = [byte for byte in CLOSING if byte in allowed] if len(said) > length else []
        if END in allowed and (len(allowed) == 1 or rng.random() < 0.3 or len(said) > length):
            return said.decode()
        token = rng.choice(ends or [one for one in allowed.tolist() if one != END])
        assert matcher.accept_token(token)
        said.append(token)
    return None


def allows(compiled, text: str) -> bool:
    matcher = xgrammar.GrammarMatcher(compiled)
    return all(matcher.accept_token(byte) for byte in text.encode()) and matcher.accept_token(END)
