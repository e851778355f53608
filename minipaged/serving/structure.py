"""What an answer must look like, asked for in OpenAI's words, becomes structured_outputs; what is no data is refused.

    {"type": "text"}                                                    None
    {"type": "json_object"}                                             {"json": {"type": "object"}}
    {"type": "json_schema", "json_schema": {"name": "x", "schema": S}}  {"json": S}

Reading a schema takes time that grows with the cube of its depth, so depth and size are limited here, at the door:
nobody's schema holds up the others. (From level 08.)"""

import json
from typing import Any, TypeVar

MAX_DEPTH, MAX_CHARACTERS = 100, 128_000  # 0.1 s to read; OpenAI allows 120,000 characters
NESTED = "{[("
T = TypeVar("T")


def from_response_format(wanted: dict[str, Any] | None) -> dict[str, Any] | None:
    """Raises ValueError for a type that is not known, or a schema that is not there."""
    match wanted:
        case None | {"type": "text"}:
            return None
        case {"type": "json_object"}:
            return {"json": {"type": "object"}}
        case {"type": "json_schema", "json_schema": {"schema": dict(schema)}}:
            return {"json": schema}
        case {"type": "json_schema"}:
            raise ValueError('response_format of type json_schema needs {"json_schema": {"schema": {...}}}')
        case {"type": kind}:
            raise ValueError(f"response_format.type must be text, json_object or json_schema, not {kind!r:.40}")
        case _:
            raise ValueError("response_format must have a type: text, json_object or json_schema")


def check_plain(value: T) -> T:
    """Raises ValueError for what could not be written down again: lone surrogates, NaN, or nested without end."""
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        raise ValueError("a lone surrogate is no Unicode text") from None
    except RecursionError:
        raise ValueError("this is nested too deeply") from None
    return value


def check_size(structure: dict[str, Any] | None) -> None:
    """Raises ValueError for a schema, pattern or grammar that would take too long to read."""
    if structure is None:
        return
    text = json.dumps(structure)
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"structured_outputs has {len(text)} characters; {MAX_CHARACTERS} are allowed")
    if (depth := measure_depth(text)) > MAX_DEPTH:
        raise ValueError(f"structured_outputs is nested {depth} deep; {MAX_DEPTH} are allowed")


def measure_depth(text: str) -> int:
    """An upper bound, brackets in strings included: a schema may be text within text."""
    depth = deepest = 0
    for character in text:
        if character in NESTED:
            depth += 1
            deepest = max(deepest, depth)
        elif character in "}])":
            depth = max(0, depth - 1)
    return deepest
