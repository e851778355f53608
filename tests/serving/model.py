"""A tiny random model with a token for every byte: it says anything, and can be made to say JSON."""

from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from ..tiny import tiny_model
from ..tiny_tokenizer import CHAT

SPECIAL = ("<|im_start|>", "<|im_end|>")
START, END = 256, 257  # their ids; END ends an answer
OPTIONS: dict[str, Any] = {"max_model_len": 256, "num_blocks": 64, "max_num_seqs": 16, "device": "cpu"}


def byte_tokenizer(folder: Path, *, chat: str | None = CHAT) -> Path:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {word: i for i, word in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=SPECIAL[1], additional_special_tokens=[SPECIAL[0]]
    )
    fast.chat_template = chat
    fast.save_pretrained(folder)
    return folder


@cache
def byte_model(folder: Path, *, chat: str | None = CHAT) -> Path:
    """Made once; the folder is returned."""
    tiny_model(folder, vocab_size=258, eos_token_id=END)
    return byte_tokenizer(folder, chat=chat)
