"""Guess cheaply, check in one forward, keep what is right.

    drafter.py    who guesses, how far, and on whose budget        ngram.py, draft_model.py    two who do
    length.py     how far to guess                                 verify.py                   what is kept

Who guesses is chosen here, once. (From level 05.)"""

from ..config import EngineConfig
from ..loading import Target, load_draft
from .draft_model import DraftModel
from .drafter import Drafter, speculate
from .length import AdaptiveLength, DraftLength
from .ngram import NgramDrafter

__all__ = ["make_drafter", "speculate"]


def make_drafter(config: EngineConfig, target: Target) -> Drafter:
    """The drafter that config asks for. Raises ValueError for a draft model that does not go with the target."""
    make_length = AdaptiveLength if config.speculative_length == "adaptive" else DraftLength
    length = make_length(config.num_speculative_tokens)
    if config.num_speculative_tokens == 0:
        return Drafter(length)
    if config.speculative_method == "ngram":
        return NgramDrafter(config.prompt_lookup_min, config.prompt_lookup_max, length)
    draft = load_draft(config, target)
    return DraftModel(draft, config.num_blocks, config.block_size, length)
