"""A file of requests: one JSON object a line; a bad line is named by its number before anything runs.

    {"prompt": "The capital of France is", "max_tokens": 8}
    {"messages": [{"role": "user", "content": "Hi"}], "temperature": 0.7, "seed": 3, "priority": 1}
    {"prompt_token_ids": [504, 3575, 282], "arrival_s": 2.5}

    line -- parse_line --> object -- parse --> Wanted -- tokenize --> Request
            before the model is loaded ...              ... after, for the tokenizer comes with it

Invariant: each line says what to read in exactly one way, and every other key is a SamplingParams field, priority,
cache_salt or arrival_s; whatever a line does not set comes from the defaults. (From level 01.)"""

import codecs
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NoReturn

from .checks import check_integer, check_number, check_token_ids, show
from .driver import Request
from .sampling_params import SamplingParams
from .text import check_text, encode, encode_chat, read_messages

CHECKS = {"prompt": check_text, "prompt_token_ids": check_token_ids, "messages": read_messages}
OPTIONS = ("priority", "cache_salt", "arrival_s")
SAMPLING = tuple(f.name for f in fields(SamplingParams))


@contextmanager
def located(where: str) -> Iterator[None]:
    """Say where whatever is refused inside comes from."""
    try:
        yield
    except (ValueError, TypeError, ArithmeticError, RecursionError) as error:
        raise ValueError(f"{where}: {error}") from error


def read_lines(path: Path) -> list[tuple[int, dict[str, Any]]]:
    """(line number, object) of every line that is not blank. Raises ValueError with the file and the line."""
    try:
        data = path.read_bytes().removeprefix(codecs.BOM_UTF8)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from error
    wanted = []
    for number, line in enumerate(data.splitlines(), 1):
        if line.strip():
            with located(f"{path}, line {number}"):
                wanted.append((number, parse_line(line)))
    if not wanted:
        raise ValueError(f"{path} has no requests")
    return wanted


def parse_line(line: bytes) -> dict[str, Any]:
    try:
        wanted = json.loads(line.decode(), object_pairs_hook=unique, parse_constant=refuse)
    except UnicodeDecodeError as error:
        raise ValueError(f"no UTF-8: byte {line[error.start]:#04x} at column {error.start + 1}") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"no JSON: {error.msg} at column {error.colno}") from None
    if not isinstance(wanted, dict):
        raise ValueError("a request must be a JSON object")
    return wanted


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    if twice := [key for key in keys if keys.count(key) > 1]:
        raise ValueError(f"key {twice[0]!r} stands there twice")
    return dict(pairs)


def refuse(name: str) -> NoReturn:
    raise ValueError(f"no JSON: {name} is not a JSON number")


@dataclass(frozen=True)
class Wanted:
    """A request as it was asked for: all checked but its tokens, for which a tokenizer is needed."""

    source: str
    value: Any
    params: SamplingParams
    priority: int = 0
    cache_salt: str | None = None
    arrival_s: float = 0.0

    def tokenize(self, tokenizer: Any) -> Request:
        """Raises ValueError for what this tokenizer or its chat template cannot read."""
        token_ids = read_source(self.source, self.value, tokenizer)
        return Request(token_ids, self.params, self.priority, self.cache_salt, self.arrival_s)


def parse(wanted: dict[str, Any], defaults: SamplingParams) -> Wanted:
    """One line, checked. Raises ValueError or TypeError for whatever can be seen without a model."""
    if unknown := set(wanted) - {*CHECKS, *OPTIONS, *SAMPLING}:
        raise ValueError(f"unknown key {min(unknown)!r}")
    sources = [name for name in CHECKS if name in wanted]
    if len(sources) != 1:
        raise ValueError(f"exactly one of {', '.join(CHECKS)} is needed, not {' and '.join(sources) or 'none'}")
    CHECKS[sources[0]](sources[0], wanted[sources[0]])
    options = {name: wanted[name] for name in OPTIONS if name in wanted}
    check_integer("priority", options.get("priority", 0), -(2**63), 2**63 - 1)
    check_number("arrival_s", options.get("arrival_s", 0.0), 0)
    if not isinstance(cache_salt := options.get("cache_salt"), str | None):
        raise TypeError(f"cache_salt must be text, not {show(cache_salt)}")
    params = replace(defaults, **{name: wanted[name] for name in SAMPLING if name in wanted})
    return Wanted(sources[0], wanted[sources[0]], params, **options)


def read_source(name: str, value: Any, tokenizer: Any) -> list[int]:
    """Token ids of a prompt, prompt_token_ids or messages."""
    if name == "messages":
        return encode_chat(tokenizer, value)
    return encode(tokenizer, value) if name == "prompt" else list(check_token_ids(name, value))
