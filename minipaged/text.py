"""Text becomes token ids here, by the model's own tokenizer and its own chat template.

    "The capital of"                         encode        [504, 3575, 282]
    [{"role": "user", "content": "Hi"}]      encode_chat   the template's text, as token ids
    "content": [{"type": "text", "text": "Hi"}, ...]       the same, the parts joined by line ends, as OpenAI has them

Invariant: what the model reads is what transformers would feed it; a template that already writes the beginning-of-
sequence token gets no second one. (From level 01.)"""

from typing import Any

from .checks import show


def encode(tokenizer: Any, text: str, *, add_special_tokens: bool = True) -> list[int]:
    """Token ids of plain text, with the special tokens that the tokenizer adds by itself, or without.

    Raises ValueError without a tokenizer, or for text that is no Unicode (a lone surrogate)."""
    if tokenizer is None:
        raise ValueError("this model has no tokenizer: give prompt_token_ids")
    check_text("prompt", text)
    return tokenize(tokenizer, text, add_special_tokens=add_special_tokens)


def encode_chat(tokenizer: Any, messages: list[dict[str, Any]]) -> list[int]:
    """Token ids of a conversation and the header of the answer to come.

    Raises ValueError without a tokenizer or chat template, and for messages that the template cannot read."""
    return tokenize(tokenizer, write_chat(tokenizer, messages), add_special_tokens=False)


def write_chat(tokenizer: Any, messages: list[dict[str, Any]]) -> str:
    """A conversation as the model reads it. Raises as `encode_chat`."""
    read = read_messages("messages", messages)
    if not getattr(tokenizer, "chat_template", None):
        raise ValueError("this model has no chat template: give prompt or prompt_token_ids")
    try:
        return str(tokenizer.apply_chat_template(read, tokenize=False, add_generation_prompt=True))
    except Exception as error:  # a template is a program of the model's: whatever it raises is about these messages
        raise ValueError(f"the chat template refuses these messages: {error}") from error


def tokenize(tokenizer: Any, text: str, *, add_special_tokens: bool) -> list[int]:
    """Without the tokenizer's own warning about length: the front desk says that better."""
    return list(tokenizer(text, add_special_tokens=add_special_tokens, verbose=False)["input_ids"])


def check_text(name: str, text: object) -> None:
    if not isinstance(text, str):
        raise TypeError(f"{name} must be text, not {show(text)}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{name} is not Unicode text: lone surrogate at character {error.start}") from None


def read_messages(name: str, messages: object) -> list[dict[str, Any]]:
    """As a chat template reads them: at least one {"role": text, "content": text}; a list of text parts is one text.

    Raises TypeError or ValueError, naming the message, for whatever is no text."""
    if not isinstance(messages, list):
        raise TypeError(f"{name} must be a list of messages, not {show(messages)}")
    if not messages:
        raise ValueError(f"{name} must have at least one message")
    return [read_message(f"{name}[{i}]", message) for i, message in enumerate(messages)]


def read_message(name: str, message: Any) -> dict[str, Any]:
    """OpenAI's newer word for "system" is "developer"; templates know the older one."""
    if not isinstance(message, dict):
        raise ValueError(f'{name} must be an object with "role" and "content"')
    if message.get("role") in ("tool", "function") or message.get("tool_calls") or message.get("function_call"):
        raise ValueError(f"{name} is about tool calls, which are not supported")
    if not {"role", "content"} <= set(message):
        raise ValueError(f'{name} must be an object with "role" and "content"')
    role, content = message["role"], message["content"]
    if isinstance(content, list):
        content = "\n".join(read_part(f"{name}.content[{i}]", part) for i, part in enumerate(content))
    check_text(f"{name}.role", role)
    check_text(f"{name}.content", content)
    return {**message, "role": "system" if role == "developer" else role, "content": content}


def read_part(name: str, part: Any) -> str:
    match part:
        case {"type": "text", "text": str(text)}:
            return text
        case {"type": str(kind)} if kind != "text":
            raise ValueError(f"{name} is {kind!r:.40}: this model reads text only")
        case _:
            raise ValueError(f'{name} must be like {{"type": "text", "text": "..."}}')
