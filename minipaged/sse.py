"""A stream of answers as its client reads it: events, each an object, until the one that says it is done.

    data: {"choices": [{"delta": {"content": "Hel"}}]}        an object
    data: {"error": {"message": "the engine has died"}}       raises RuntimeError, as whatever is no event does
    data: [DONE]                                              the end; a stream that stops before it was cut

(From level 08: the terminal's chat and the benchmark's clients.)"""

import json
from typing import Any

END = "[DONE]"


class StreamReader:
    """Takes a line at a time. done: whether the end was there."""

    def __init__(self) -> None:
        self.done = False

    def read(self, line: str) -> dict[str, Any] | None:
        """The object in a line; None if it holds none. Raises RuntimeError with the server's words, or for no JSON."""
        kind, _, value = line.partition(":")
        if kind != "data":
            return None
        if value.strip() == END:
            self.done = True
            return None
        event = parse(value)
        if error := event.get("error"):
            raise RuntimeError(str(error.get("message", error) if isinstance(error, dict) else error))
        return event

    def check_end(self) -> None:
        if not self.done:
            raise RuntimeError("the answer was cut: the connection ended before it did")


def parse(text: str) -> dict[str, Any]:
    try:
        event = json.loads(text)
    except (ValueError, RecursionError):
        event = None
    if not isinstance(event, dict):
        raise RuntimeError(f"the server sent an event that is no JSON object: {text.strip():.40}")
    return event


def delta(event: dict[str, Any]) -> str:
    """The text in a chunk of chat or of completions; "" if it has none."""
    match event:
        case {"choices": [{"delta": {"content": str(text)}}, *_]} | {"choices": [{"text": str(text)}, *_]}:
            return text
    return ""
