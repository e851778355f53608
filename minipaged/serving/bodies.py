"""A long body is read beside the loop, and in pieces: between any two of them others have their turn.

    {"prompt": [17, 4, 92, ...], "seed": 1}      numbers: PIECE characters at a time; whatever else: value by value

json.loads reads eight megabytes in up to two seconds and lets no thread go on meanwhile, so another thread alone would
help nobody. The standard library's scanner in Python lets them; it is undocumented (JSONArray, JSONObject,
py_make_scanner), and tests/serving/test_bodies.py would say if it went. Invariant: what json.loads reads says here what
it says there, or is refused: for more than MAX_VALUES values, beside the numbers that a list begins with, or for lists
in lists too many for a scanner in Python, some 240. (From level 08.)"""

import json
import re
from collections.abc import Callable
from json import JSONDecodeError
from json.decoder import JSONArray, JSONObject  # type: ignore[attr-defined]
from json.scanner import py_make_scanner  # type: ignore[attr-defined]
from typing import Any

from fastapi import Request
from starlette.exceptions import HTTPException

from .reading import LONG_BYTES

PIECE = 64 << 10  # characters: a few milliseconds
MAX_VALUES = 300_000  # the largest request has fewer; over millions of objects the garbage collector pauses too long
RUN = re.compile(r"([-+.0-9eE,\s]*[0-9])\s*,")  # of numbers; the last of a list has no comma behind it
Scan = Callable[[str, int], tuple[Any, int]]


class BodyRequest(Request):
    """Whose JSON is read by the application's readers, if there is much of it."""

    async def json(self) -> Any:
        if not hasattr(self, "_json"):
            body, readers = await self.body(), self.app.state.readers
            is_long = len(body) > LONG_BYTES
            self._json = await readers.read(len(body), parse_in_pieces, body) if is_long else json.loads(body)
        return self._json


def parse_in_pieces(body: bytes) -> Any:
    """Raises as json.loads does, and HTTPException, 400, for too many values."""
    return json.loads(body, cls=PatientDecoder)


class PatientDecoder(json.JSONDecoder):
    """A decoder for one text."""

    def __init__(self) -> None:
        super().__init__()
        self.num_values = 0
        self.parse_array, self.parse_object = self.read_array, self.read_object
        self.scan_once = py_make_scanner(self)

    def read_array(self, where: tuple[str, int], scan: Scan) -> tuple[list[Any], int]:
        text, start = where
        numbers, rest = read_numbers(text, start)
        others, end = JSONArray((text, rest), self.counted(scan))
        if numbers and not others:  # "[1, 2,]": let the whole of it be refused
            return JSONArray(where, self.counted(scan))  # type: ignore[no-any-return]
        numbers += others
        return numbers, end

    def read_object(self, where: tuple[str, int], strict: bool, scan: Scan, *hooks: Any) -> tuple[Any, int]:
        found: tuple[Any, int] = JSONObject(where, strict, self.counted(scan), *hooks)
        return found

    def counted(self, scan: Scan) -> Scan:
        def scan_counted(text: str, start: int) -> tuple[Any, int]:
            self.num_values += 1
            if self.num_values > MAX_VALUES:
                raise HTTPException(400, f"a body may have at most {MAX_VALUES} values, ids in lists not counted")
            return scan(text, start)

        return scan_counted


def read_numbers(text: str, start: int) -> tuple[list[Any], int]:
    """Those that a list begins with, but for its last, and where the rest of it begins."""
    numbers, rest = list[Any](), start
    try:
        while run := RUN.match(text, rest, rest + PIECE):
            numbers += json.loads(f"[{run[1]}]")
            rest = run.end()
    except JSONDecodeError:  # it is found again, and its place in the text with it
        return [], start
    return numbers, rest
