"""What can be known of a model without its weights: its words, which of them end a text, what grammars may ask.

    ids -> text      decode, and streams of it         text -> ids      tokenizer
    ends             EOS ids of generation_config, config and tokenizer together

Whoever talks to users needs this and no tensor; `tokenizer.py` reads it from a model's folder. (From level 01.)"""

from dataclasses import dataclass, replace
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
