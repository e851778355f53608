"""A figure in a text names its source in a comment behind it, which a reader never sees.

    in 10.6 s<!-- lessons: 03.tables.0.here.last_s -->     the figure, then FILE in benchmarks/results, then where in it

    a.b.c            keys; 3 or -1 for a place in a list
    a[c, d=e].f      of a list of objects, those with a value c, and e for d; a[*].f: of all
    A / B            of several values the median; of several ratios their median, one by one if there are as many
    a[b].f / [c]     the same as a[b].f / a[c].f

Units are the text's: % is a hundred times the share, ms and µs what a key in seconds (_s) or nanoseconds (ns_) comes
to, MB a million bytes. Invariant: a figure is its source, rounded to as many digits as the text gives."""

import json
import re
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

RESULTS = Path(__file__).parent.parent / "benchmarks" / "results"
QUOTE = re.compile(r"(?<![\w.])([\d,]*\.?\d+)((?: ?[%µ\w/]+){0,3}?)<!-- ([\w-]+): (.*?) -->", re.S)
STEP = re.compile(r"([^.\[\]]+)(?:\[([^\]]*)\])?\.?")
FACTORS = {("%", ""): 100.0, ("ms", "s"): 1e3, ("µs", "s"): 1e6, ("µs", "ns"): 1e-3, ("ms", "ns"): 1e-6}
FACTORS |= {("MB", "bytes"): 1e-6, ("GB", "bytes"): 1e-9}


class Quote(NamedTuple):
    figure: str
    unit: str
    file: str
    expression: str

    @property
    def source(self) -> float:
        """What the results say, in the text's unit. Raises LookupError if they say nothing."""
        document = json.loads((RESULTS / f"{self.file}.json").read_text())
        return evaluate(document, self.expression) * self.factor

    @property
    def factor(self) -> float:
        words, top = self.unit.split(), self.expression.partition(" / ")[0]
        names = re.split(r"[._\[]", re.sub(r"\[[^\]]*\]", "", top))
        return next((factor for (unit, name), factor in FACTORS.items() if unit in words and name in ["", *names]), 1.0)

    @property
    def is_true(self) -> bool:
        number = self.figure.replace(",", "")
        digits = len(number.partition(".")[2])
        return abs(float(number) - self.source) <= 0.5 * 10**-digits + 1e-9


def quotes(text: str) -> list[Quote]:
    return [Quote(*(" ".join(part.split()) for part in match.groups())) for match in QUOTE.finditer(text)]


def evaluate(document: Any, expression: str) -> float:
    above, _, below = expression.partition(" / ")
    tops = find(document, above)
    if not below:
        return median(tops)
    if below.startswith("["):
        below = re.sub(r"\[[^\]]*\]", below, above, count=1)
    bottoms = find(document, below)
    if len(tops) == len(bottoms):
        return median(top / bottom for top, bottom in zip(tops, bottoms, strict=True))
    return median(tops) / median(bottoms)


def find(document: Any, path: str) -> list[float]:
    """All numbers that a path leads to. Raises LookupError if there are none."""
    found = [document]
    for name, wanted in STEP.findall(path.strip()):
        found = [value for each in found if (value := enter(each, name)) is not None]
        if wanted:
            rows = [row for rows in found for row in rows]
            found = (
                rows
                if wanted == "*"
                else [row for row in rows if all(has(row, each.strip()) for each in wanted.split(","))]
            )
    if not found:
        raise LookupError(f"there is no {path}")
    return found


def has(row: dict[str, Any], wanted: str) -> bool:
    key, is_named, value = wanted.partition("=")
    return str(row[key]) == value if is_named else wanted in map(str, row.values())


def enter(value: Any, name: str) -> Any:
    if isinstance(value, list):
        return value[int(name)]
    return value.get(name)
