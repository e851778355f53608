"""What can be known of a model without its weights: its words, which of them end a text, what grammars may ask.

    ids -> text      decode, and streams of it         text -> ids      tokenizer
    ends             EOS ids of generation_config, config and tokenizer together

Whoever talks to users needs this and no tensor; `tokenizer.py` reads it from a model's folder. (From level 01.)"""

import json
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from .detokenizer import Detokenizer
from .structured import Grammars


@dataclass(frozen=True)
class Vocabulary:
    """size: V. tokenizer: None if the folder has none; decode then gives "". grammars: None before level 03."""

    size: int
    eos_token_ids: frozenset[int]
    tokenizer: Any  # transformers' PreTrainedTokenizerFast
    decode: Detokenizer
    grammars: Grammars | None

    def without_grammars(self) -> "Vocabulary":
        return replace(self, grammars=None)

    @cached_property
    def most_characters(self) -> int | None:
        """How much text one token can stand for; None where that is not known."""
        return None if self.decode.tokenizer is None else measure_longest(json.loads(self.decode.tokenizer.to_str()))


KEEPS_ALL = {"ByteLevel", "Digits", "Split", "Punctuation", "Sequence"}  # unless what they split at is removed


def measure_longest(tokenizer: dict[str, Any]) -> int | None:
    """Of a tokenizer.json: where every byte of a text is in one of its tokens, none of which is longer than this."""
    steps, added = tokenizer["pre_tokenizer"] or {}, tokenizer["added_tokens"]
    steps = steps.get("pretokenizers", [steps])
    swallows = any(token["lstrip"] or token["rstrip"] for token in added)
    removes = any(step.get("type") not in KEEPS_ALL or step.get("behavior") == "Removed" for step in steps)
    is_bytes = any(step.get("type") == "ByteLevel" for step in steps)
    if tokenizer["normalizer"] or tokenizer["truncation"] or swallows or removes or not is_bytes:
        return None
    return max(map(len, (*tokenizer["model"]["vocab"], *(token["content"] for token in added))))
