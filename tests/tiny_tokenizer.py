"""A tokenizer for tests/tiny.py's folders, of so few words that a test can say which token is which.

"w7 w9"                                      [7, 9]         any other word is <unk>, 0
[{"role": "user", "content": "w7"}]          [1, 3, 7, 2, 1, 4]
                                             <|im_start|> user w7 <|im_end|> <|im_start|> assistant

And one with a token for every byte, as SentencePiece models have for what no word covers."""

from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from .tiny import VOCAB_SIZE

SPECIAL = ("<unk>", "<|im_start|>", "<|im_end|>")
WORDS = (*SPECIAL, "user", "assistant", *(f"w{i}" for i in range(len(SPECIAL) + 2, VOCAB_SIZE)))
CHAT = (
    "{% for message in messages %}<|im_start|>{{ message.role }} {{ message.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant{% endif %}"
)


def tiny_tokenizer(folder: Path, *, chat: str | None = CHAT, bos: bool = False, **options: object) -> Path:
    """Save it into folder and return the folder. With bos, plain text begins with <|im_start|>."""
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)]
        )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", additional_special_tokens=list(SPECIAL[1:]), **options
    )
    fast.chat_template = chat
    fast.save_pretrained(folder)
    return folder


BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
PIECES = ("<unk>", "<s>", "</s>", *BYTES, "▁", "▁▁", "▁leading", "▁x", "▁Hello", "▁world", "er", "é", "叫", ".")


def byte_fallback_tokenizer() -> Tokenizer:
    """Pieces with their leading spaces, and bytes that the decoder puts together; the first space of a text goes."""
    vocab = {piece: i for i, piece in enumerate(PIECES)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True, unk_token="<unk>"))
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    strip = decoders.Strip(content=" ", left=1, right=0)
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), strip])
    return tokenizer
