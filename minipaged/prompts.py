"""A file of requests: one JSON object a line; a bad line is named by its number before anything runs.

    {"prompt": "The capital of France is", "max_tokens": 8}
    {"messages": [{"role": "user", "content": "Hi"}], "temperature": 0.7, "seed": 3, "priority": 1}
    {"prompt_token_ids": [504, 3575, 282], "arrival_s": 2.5}

Invariant: each line says what to read in exactly one way, and every other key is a SamplingParams field, priority,
cache_salt or arrival_s; whatever a line does not set comes from the defaults. (From level 01.)"""

import json
from collections.abc import Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from .checks import check_number, check_token_ids
from .driver import Request
from .sampling_params import SamplingParams
from .text import encode, encode_chat

SOURCES = ("prompt", "prompt_token_ids", "messages")
OPTIONS = ("priority", "cache_salt", "arrival_s")
SAMPLING = tuple(f.name for f in fields(SamplingParams))


def read_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, object) of every line that is not blank. Raises ValueError with the file and the line."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: {error}") from None
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not lines:
        raise ValueError(f"{path} has no requests")
    for number, line in lines:
        try:
            yield number, parse_line(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}, line {number}: {error}") from None


def parse_line(line: str) -> dict[str, Any]:
    try:
        wanted = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"no JSON: {error.msg} at column {error.colno}") from None
    if not isinstance(wanted, dict):
        raise ValueError("a request must be a JSON object")
    return wanted


def make_request(wanted: dict[str, Any], defaults: SamplingParams, tokenizer: Any) -> Request:
    """One line as a Request. Raises ValueError or TypeError for whatever can be seen before an engine is asked."""
    if unknown := set(wanted) - {*SOURCES, *OPTIONS, *SAMPLING}:
        raise ValueError(f"unknown key {min(unknown)!r}")
    sources = [name for name in SOURCES if name in wanted]
    if len(sources) != 1:
        raise ValueError(f"exactly one of {', '.join(SOURCES)} is needed, not {len(sources)}")
    cache_salt, arrival_s = wanted.get("cache_salt"), wanted.get("arrival_s", 0.0)
    check_number("arrival_s", arrival_s, 0)
    if cache_salt is not None and not isinstance(cache_salt, str):
        raise TypeError(f"cache_salt must be text, not {cache_salt!r}")
    return Request(
        prompt_token_ids=read_source(sources[0], wanted[sources[0]], tokenizer),
        params=SamplingParams(**{**asdict(defaults), **{k: v for k, v in wanted.items() if k in SAMPLING}}),
        priority=wanted.get("priority", 0),
        cache_salt=cache_salt,
        arrival_s=float(arrival_s),
    )


def read_source(name: str, value: Any, tokenizer: Any) -> list[int]:
    if name == "messages":
        return encode_chat(tokenizer, value)
    return encode(tokenizer, value) if name == "prompt" else list(check_token_ids(name, value))
