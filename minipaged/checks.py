"""What a user can do wrong is refused at the front door, in one sentence: the field, the legal range, the value.

    check_integer("max_tokens", 0, low=1)      ValueError: max_tokens must be a whole number >= 1, not 0
    check_integer("max_tokens", 1.5, low=1)    TypeError:  max_tokens must be a whole number >= 1, not 1.5

Invariant: a wrong type raises TypeError, a wrong value ValueError, and both name the field."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any

MOST_DIGITS = 200  # of a token id that comes as text: Python reads a few thousand, slowly
LONGEST = 200  # characters of what is refused: a sentence is one line


def show(value: object, spell: Callable[[Any], str] = repr) -> str:
    """What was refused, for the sentence that says so; Python does not write whole numbers of 4300 digits and more."""
    try:
        text = spell(value)
    except ValueError:
        return (
            "a whole number of thousands of digits" if isinstance(value, Integral) else f"such a {type(value).__name__}"
        )
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def check_number(name: str, value: object, low: float, high: float = math.inf, *, above_low: bool = False) -> None:
    """value must be a finite real number in [low, high], or in (low, high] with above_low."""
    is_open = above_low or low == -math.inf
    legal = f"a number in {'(' if is_open else '['}{low}, {high}{')' if high == math.inf else ']'}"
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be {legal}, not {show(value)}")
    try:
        x = float(value)
    except OverflowError:  # a whole number that no float can hold
        x = math.inf
    if not (math.isfinite(x) and low <= x <= high) or (above_low and x == low):
        raise ValueError(f"{name} must be {legal}, not {show(value, str)}")


def check_integer(name: str, value: object, low: int, high: int | None = None, *, optional: bool = False) -> None:
    """value must be a whole number in [low, high]; with `optional`, None is fine too."""
    if optional and value is None:
        return
    legal = f"a whole number >= {low}" if high is None else f"a whole number in [{low}, {high}]"
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be {legal}, not {show(value)}")
    if int(value) < low or (high is not None and int(value) > high):
        raise ValueError(f"{name} must be {legal}, not {show(value, str)}")


def check_structure(name: str, value: object) -> None:
    """value must say in exactly one way what a text looks like, {"json" or "regex" or "choice" or "grammar": ...}."""
    if value is None:
        return
    legal = f"{name} must have one key, json, regex, choice or grammar"
    if not isinstance(value, Mapping):
        raise TypeError(f"{legal}, not {show(value)}")
    if len(value) != 1 or not set(value) <= {"json", "regex", "choice", "grammar"}:
        raise ValueError(f"{legal}, not {sorted(map(str, value))}")
    [(kind, source)] = value.items()
    if kind == "choice":
        if not isinstance(source, list | tuple) or not all(isinstance(choice, str) for choice in source):
            raise TypeError(f"{name}.choice must be a list of texts, not {show(source)}")
        if not source or "" in source:
            raise ValueError(f"{name}.choice must have at least one text, and none that is empty, not {show(source)}")
    elif not isinstance(source, str) and not (kind == "json" and isinstance(source, dict)):
        raise TypeError(f"{name}.{kind} must be text{' or a schema' if kind == 'json' else ''}, not {show(source)}")


def check_boolean(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be true or false, not {show(value)}")


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be one of {', '.join(choices)}, not {show(value)}")
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, not {show(value)}")


def check_token_ids(name: str, value: object) -> tuple[int, ...]:
    """value must be a list (or tuple, or other iterable but text) of whole numbers >= 0."""
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise TypeError(f"{name} must be a list of token ids, not {show(value)}")
    token_ids = tuple(value)
    for i, token_id in enumerate(token_ids):
        if type(token_id) is not int or token_id < 0:
            check_integer(f"{name}[{i}]", token_id, 0)
    return tuple(int(token_id) for token_id in token_ids)


def check_token_bias(name: str, value: object) -> dict[int, float]:
    """value must be {token id: finite number}; ids may be written as text, since JSON has no other keys."""
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} must be a mapping from token id to number, not {show(value)}")
    biases: dict[int, float] = {}
    for key, bias in value.items():
        is_number = isinstance(key, str) and len(key) < MOST_DIGITS and key.removeprefix("-").isdecimal()
        token_id = int(key) if is_number else key
        check_integer(f"{name} token id", token_id, 0)
        check_number(f"{name}[{show(token_id, str)}]", bias, -math.inf)
        biases[int(token_id)] = float(bias)
    return biases
