r"""JSON strings of a length, a pattern or a format, in characters and not in \u escapes.

    {"minLength": 2}                      "\"" character{2,} "\""
    {"pattern": "^[a-z]+$"}               "\"" ([a-z]){1,} "\""        the whole text, which fits a search too
    {"format": "date"}                    a pattern of ours, narrower than its RFC: no 29th of February

A pattern goes with lengths that all of its texts have anyway; other combinations would need more than a grammar says
simply, and are refused. (From level 03.)"""

from typing import Any

from .ebnf import characters, times
from .regex import ESCAPED, UNESCAPED, Pattern, in_json, to_ebnf

CHARACTER = " | ".join([*ESCAPED.values(), characters(UNESCAPED)])
DAYS = "0[1-9]|1[0-9]|2[0-8]"
MONTHS = f"(?:0[1-9]|1[0-2])-(?:{DAYS})|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31"
DATE, CLOCK, WORD = f"[1-9][0-9]{{3}}-(?:{MONTHS})", "(?:[01][0-9]|2[0-3]):[0-5][0-9]", "[A-Za-z0-9]{1,20}"
TIME = rf"{CLOCK}:[0-5][0-9](?:\.[0-9]{{1,6}})?(?:Z|[+-]{CLOCK})"
BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
FORMATS = {
    "date": DATE,
    "time": TIME,
    "date-time": f"{DATE}T{TIME}",
    "uuid": "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    "ipv4": rf"{BYTE}(?:\.{BYTE}){{3}}",
    "email": rf"{WORD}(?:[._+-]{WORD}){{0,2}}@{WORD}(?:-{WORD})?(?:\.{WORD}){{0,2}}\.[A-Za-z]{{2,10}}",
}


def read_string(low: int, high: int | None, pattern: Any, form: Any) -> str:
    """low, high: how many characters. Raises ValueError, beginning with the keyword that cannot be kept."""
    if pattern is None and form is None:
        return "string" if (low, high) == (0, None) else quote(times(characters(UNESCAPED), low, high))
    if form is not None:
        if pattern is not None or (low, high) != (0, None):
            raise ValueError("format goes with no pattern, minLength or maxLength")
        if form not in FORMATS:
            raise ValueError(f"format must be one of {', '.join(FORMATS)}, not {form!r:.40}")
        return quote(to_ebnf(FORMATS[form], in_json))
    if not isinstance(pattern, str):
        raise ValueError(f"pattern must be text, not {pattern!r:.40}")
    return quote(read_pattern(pattern, low, high))


def read_pattern(pattern: str, low: int, high: int | None) -> str:
    try:
        read = Pattern(pattern, in_json)
    except ValueError as error:
        raise ValueError(f"pattern is not supported: {error}") from error
    if read.min_width < low or (high is not None and read.max_width > high):
        raise ValueError("pattern goes with no minLength or maxLength that it does not keep by itself")
    return read.expression


def quote(expression: str) -> str:
    return rf'"\"" {expression} "\""'
