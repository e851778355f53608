"""The numbers between two bounds are a few ranges of digits: one for each length, and what the bounds cut off it.

    whole(Bounds(7, 213))      [7-9] | "2" ("1" [0-3] | "0" [0-9]) | "1" [0-9]{2} | [1-9] [0-9]{1,1}
    real(Bounds(0, 1.5))       [0-1] | "1" "." [0-5] | "0" "." [0-9] | ... the same with two decimals, and so on

Numbers are written as json.dumps writes those of such a size: no exponent, no leading zero, no -0. A whole number has
DIGITS digits at most, so that 64 bits hold it; a real one has EXACT, so that no two of them are the same float, and one
that is beyond a bound in decimals is so as a float. (From level 03.)"""

import math
from decimal import Decimal
from typing import NamedTuple

from .ebnf import any_of, literal

DIGITS, EXACT, DECIMALS = 18, 15, 6
MULTIPLES = 1000  # so many are written out
NINES = str.maketrans("012345678", "999999999")
ZEROS = str.maketrans("123456789", "000000000")


class Bounds(NamedTuple):
    """low <= x <= high, or < where that is said; None: no bound."""

    low: Decimal | None = None
    high: Decimal | None = None
    above_low: bool = False
    below_high: bool = False

    def scaled(self, decimals: int, num_digits: int) -> tuple[int, int]:
        """The first and last x * 10 ** decimals that are whole numbers, of so many digits at most."""
        limit = Decimal(10**num_digits - 1)
        low = -limit if self.low is None else max(-limit, self.low.scaleb(decimals))
        high = limit if self.high is None else min(limit, self.high.scaleb(decimals))
        first, last = math.ceil(low), math.floor(high)
        strict_low, strict_high = self.above_low and first == low, self.below_high and last == high
        return first + (strict_low and low != -limit), last - (strict_high and high != limit)

    @property
    def decimals(self) -> int:
        """That the bounds themselves have."""
        given = [one.normalize() for one in (self.low, self.high) if one]
        return max([0, *(-int(one.as_tuple().exponent) for one in given)])

    @property
    def digits(self) -> int:
        """Of the bounds, before the point."""
        return max([1, *(one.adjusted() + 1 for one in (self.low, self.high) if one)])


def whole(bounds: Bounds, multiple_of: int = 1) -> str:
    """Raises ValueError where there is none, or too many multiples to write them out."""
    first, last = bounds.scaled(0, DIGITS)
    first, last = -(-first // multiple_of), last // multiple_of
    if first > last:
        raise ValueError(f"leaves no whole number of at most {DIGITS} digits")
    if multiple_of == 1:
        return any_of(signed(first, last, 0))
    if last - first >= MULTIPLES:
        raise ValueError(f"leaves more than the {MULTIPLES} multiples that are written out")
    return any_of(literal(str(n * multiple_of)) for n in range(first, last + 1))


def real(bounds: Bounds) -> str:
    """Raises ValueError where there is none, or a bound has more than EXACT digits."""
    if bounds.digits + bounds.decimals > EXACT:
        raise ValueError(f"has a bound of more than {EXACT} digits, which floats do not tell apart")
    decimals = max(bounds.decimals, min(DECIMALS, EXACT - bounds.digits))
    before = EXACT - decimals
    found = [way for n in range(decimals + 1) for way in signed(*bounds.scaled(n, before + n), n)]
    if not found:
        raise ValueError(f"leaves no number of at most {decimals} decimals")
    return any_of(found)


def signed(first: int, last: int, decimals: int) -> list[str]:
    """n / 10 ** decimals for all n in [first, last]."""
    ways = []
    if first <= min(last, -1):
        ways += [f'"-" {way}' for way in by_length(-min(last, -1), -first, decimals)]
    if max(first, 0) <= last:
        ways += by_length(max(first, 0), last, decimals)
    return ways


def by_length(first: int, last: int, decimals: int) -> list[str]:
    low, high = (str(n).rjust(decimals + 1, "0") for n in (first, last))
    if len(low) == len(high):
        return [digits(point(low, decimals), point(high, decimals))]
    short, long = (
        len(low) - decimals,
        len(high) - decimals - 1,
    )  # digits before the point: the first's; the last's but one
    ways = [
        digits(point(low, decimals), point("9" * len(low), decimals)),
        digits(point("1".ljust(len(high), "0"), decimals), point(high, decimals)),
    ]
    if short < long:  # all that lies between
        behind = f' "." [0-9]{{{decimals}}}' if decimals else ""
        ways.append(f"[1-9] [0-9]{{{short},{long - 1}}}{behind}")
    return ways


def point(text: str, decimals: int) -> str:
    return f"{text[:-decimals]}.{text[-decimals:]}" if decimals else text


def digits(low: str, high: str) -> str:
    """All texts from low to high, which are of one length and have their point in one place."""
    if low == high:
        return f'"{low}"'
    if low[0] == high[0]:
        return f'"{low[0]}" {digits(low[1:], high[1:])}'
    zeros, nines = low[1:].translate(ZEROS), low[1:].translate(NINES)
    first, last, ways = int(low[0]), int(high[0]), []
    if low[1:] != zeros:  # the first digit's texts are not all there
        ways.append(f'"{first}" {digits(low[1:], nines)}')
        first += 1
    if high[1:] != nines:
        ways.append(f'"{last}" {digits(zeros, high[1:])}')
        last -= 1
    if first <= last:
        ways.append(f"[{first}-{last}] {free(zeros)}".strip() if first < last else f'"{first}" {free(zeros)}'.strip())
    return any_of(ways) if len(ways) > 1 else ways[0]


def free(zeros: str) -> str:
    """Any digits, with the point where it is."""
    before, point, behind = zeros.partition(".")
    parts = [f"[0-9]{{{len(part)}}}" if part else "" for part in (before, behind)]
    return " ".join(part for part in (parts[0], f'"{point}"' if point else "", parts[1]) if part)
