"""Token ids become text as they come: never half a character, and nothing that was shown is taken back.

    tokens    F0  9F  94  A5   " is"            four bytes of one character, then a word
    append    ""  ""  ""  "🔥"  " is"            deltas
    flush                              ""       at the end: whatever was still open, as broken as it is

    whole     decode(token_ids)                 transformers' decoding in one go
    so far    decode(token_ids, so_far=True)    the same without a half character at its end

The work is done by tokenizers' DecodeStream, which decodes a few tokens behind the newest along with it, since a piece
alone does not know whether a space precedes it. Invariant: deltas and flush join to the whole. One exception cannot be
helped: a byte that fits no character, right behind a whole one, makes ByteFallback decoders spoil that one too; here
it stays. (From level 01; whoever asks for no text pays nothing.)"""

from collections.abc import Iterable

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

BROKEN = "�"  # what decoders write for bytes that make no character, or none yet


class TextStream:
    """One growing text."""

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool):
        self.tokenizer, self.skip_special_tokens = tokenizer, skip_special_tokens
        self.stream = DecodeStream(skip_special_tokens=skip_special_tokens)
        self.token_ids: list[int] = []
        self.num_settled = 0  # tokens whose text is out
        self.text = ""  # all deltas so far

    def append(self, token_ids: Iterable[int]) -> str:
        """What these tokens add to the text."""
        start = len(self.text)
        for token_id in token_ids:
            self.token_ids.append(token_id)
            if delta := self.step(token_id):
                self.text += delta
                self.num_settled = len(self.token_ids)
        return self.text[start:]

    def step(self, token_id: int) -> str | None:
        try:
            return self.stream.step(self.tokenizer, token_id)
        except Exception as error:
            if "Invalid prefix" not in str(error):
                raise
        # the decoder would change what is out: what is not yet out goes on by itself
        self.stream = DecodeStream(skip_special_tokens=self.skip_special_tokens)
        return self.stream.step(self.tokenizer, self.token_ids[self.num_settled :])

    @property
    def rest(self) -> str:
        """What `flush` would add."""
        if self.num_settled == len(self.token_ids):
            return ""
        whole = self.decode(self.token_ids)
        return (
            whole[len(self.text) :] if whole.startswith(self.text) else self.decode(self.token_ids[self.num_settled :])
        )

    def flush(self) -> str:
        """What is left when no more tokens come, broken characters included."""
        rest = self.rest
        self.text, self.num_settled = self.text + rest, len(self.token_ids)
        return rest

    def decode(self, token_ids: list[int]) -> str:
        return self.tokenizer.decode(token_ids, skip_special_tokens=self.skip_special_tokens)


class Detokenizer:
    """tokenizer: None for a model that came without; then every text is empty."""

    def __init__(self, tokenizer: Tokenizer | None):
        self.tokenizer = tokenizer

    def __call__(self, token_ids: list[int], skip_special_tokens: bool = True, *, so_far: bool = False) -> str:
        """All of it as text; with `so_far` without a half character that it may end in."""
        if self.tokenizer is None:
            return ""
        text = self.tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)
        if not (so_far and text.endswith(BROKEN)):
            return text
        stream = self.stream(skip_special_tokens)
        return stream.append(token_ids)

    def stream(self, skip_special_tokens: bool = True) -> TextStream:
        assert self.tokenizer is not None, "without a tokenizer there is no text to stream"
        return TextStream(self.tokenizer, skip_special_tokens)
