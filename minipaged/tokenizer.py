"""A folder's words: its tokenizer, and what three of its files say ends a text.

    tokenizer.json, tokenizer_config.json    ->  tokenizer, decode, grammars
    generation_config, config, tokenizer     ->  eos_token_ids, all that any of them names

Invariant: a tokenizer that cannot decode step by step is refused by its folder. (From level 01.)"""

from pathlib import Path
from typing import TYPE_CHECKING

from .detokenizer import Detokenizer
from .models.config import ModelConfig, read_json, read_token_ids
from .structured import Grammars
from .vocabulary import Vocabulary

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")


def load_vocabulary(folder: Path, model: ModelConfig) -> Vocabulary:
    tokenizer = load_tokenizer(folder)
    decode = Detokenizer(None if tokenizer is None else tokenizer.backend_tokenizer)
    ends = find_eos_token_ids(folder, model, tokenizer)
    return Vocabulary(model.vocab_size, ends, tokenizer, decode, Grammars(decode.tokenizer, model.vocab_size, ends))


def wordless(folder: Path, model: ModelConfig) -> Vocabulary:
    """For those who only hear and say token ids."""
    return Vocabulary(model.vocab_size, model.eos_token_ids, None, Detokenizer(None), None)


def load_tokenizer(folder: Path) -> "PreTrainedTokenizerFast | None":
    """None if the folder has none. Raises ValueError for one that is not made of tokenizers' parts."""
    if not any((folder / name).exists() for name in TOKENIZER_FILES):
        return None
    from transformers import AutoTokenizer, PreTrainedTokenizerFast  # late: a second that tiny models save

    path = folder / "tokenizer_config.json"
    described = read_json(path).get("tokenizer_class") if path.exists() else None
    # what AutoTokenizer would find too, 1 s later
    known = PreTrainedTokenizerFast if described == "PreTrainedTokenizerFast" else AutoTokenizer
    tokenizer = known.from_pretrained(folder)
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise ValueError(
            f"{folder}: a {type(tokenizer).__name__} cannot decode step by step, no fast tokenizer is there"
        )
    return tokenizer


def find_eos_token_ids(folder: Path, model: ModelConfig, tokenizer: "PreTrainedTokenizerFast | None") -> frozenset[int]:
    """What ends a text, by any of the three that may know: generation_config, config, tokenizer."""
    path = folder / "generation_config.json"
    generation = read_token_ids(read_json(path), "eos_token_id") if path.exists() else frozenset()
    own = None if tokenizer is None else tokenizer.eos_token_id
    return generation | model.eos_token_ids | (frozenset() if own is None else {own})
