"""Text becomes token ids here, by the model's own tokenizer and its own chat template.

    "The capital of"                         encode        [504, 3575, 282]
    [{"role": "user", "content": "Hi"}]      encode_chat   the template's text, as token ids

Invariant: what the model reads is what transformers would feed it; a template that already writes the beginning-of-
sequence token gets no second one. (From level 01.)"""

from typing import Any


def encode(tokenizer: Any, text: str) -> list[int]:
    """Token ids of plain text, with the special tokens that the tokenizer adds by itself.

    Raises ValueError without a tokenizer, or for text that is no Unicode (a lone surrogate)."""
    if tokenizer is None:
        raise ValueError("this model has no tokenizer: give prompt_token_ids")
    if not isinstance(text, str):
        raise TypeError(f"a prompt must be text, not {text!r}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"the prompt is not Unicode text: lone surrogate at character {error.start}") from None
    return list(tokenizer(text)["input_ids"])


def encode_chat(tokenizer: Any, messages: list[dict[str, Any]]) -> list[int]:
    """Token ids of a conversation and the header of the answer to come.

    Raises ValueError without a tokenizer or chat template, and for messages that the template cannot read."""
    if tokenizer is None or not getattr(tokenizer, "chat_template", None):
        raise ValueError("this model has no chat template: give prompt or prompt_token_ids")
    check_messages(messages)
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    except Exception as error:  # a template is a program of the model's: whatever it raises is about these messages
        raise ValueError(f"the chat template refuses these messages: {error}") from error
    encode(tokenizer, text)  # refuses lone surrogates
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def check_messages(messages: object) -> None:
    if not isinstance(messages, list) or not messages:
        raise ValueError("messages must be a list of at least one message")
    for i, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise ValueError(f'messages[{i}] must be an object with "role" and "content"')
        if not isinstance(message.get("content"), str):
            raise ValueError(f"messages[{i}].content must be text")
