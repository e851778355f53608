"""Between two bounds: every number of few digits that is there, no other, and none that a float would move out."""

import re
from decimal import Decimal
from random import Random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from minipaged.languages.numbers import DECIMALS, DIGITS, EXACT, Bounds, real, whole

from .saying import read_or_reject, say

NEAR = st.decimals(-3000, 3000, places=0) | st.decimals(-30, 30, places=2) | st.none()
BOUNDS = st.builds(Bounds, NEAR, NEAR, st.booleans(), st.booleans())


def to_re(expression):
    """These expressions are literals, classes, repetitions and alternatives."""
    return re.compile(re.sub(r'"([^"]*)"', lambda found: re.escape(found.group(1)), expression).replace(" ", ""))


def within(bounds, x):
    low = bounds.low is None or (x > bounds.low if bounds.above_low else x >= bounds.low)
    return low and (bounds.high is None or (x < bounds.high if bounds.below_high else x <= bounds.high))


def near(bounds, step):
    """Numbers about both bounds and zero."""
    around = [one for one in (bounds.low, bounds.high, Decimal(0)) if one is not None]
    return [one.quantize(step, "ROUND_FLOOR") + step * n for one in around for n in (-11, -9, -2, -1, 0, 1, 2, 10)]


@given(bounds=BOUNDS)
def test_whole_numbers_are_all_that_is_between_their_bounds(bounds):
    numbers = [int(x) for x in near(bounds, Decimal(1))]
    try:
        expression = to_re(whole(bounds))
    except ValueError:
        assert not any(within(bounds, x) for x in numbers)
        return
    assert [bool(expression.fullmatch(str(x))) for x in numbers] == [within(bounds, x) for x in numbers]
    assert not expression.fullmatch("-0")
    assert not expression.fullmatch("01")


@given(bounds=BOUNDS, decimals=st.integers(1, DECIMALS))
def test_real_numbers_are_all_of_few_decimals_that_is_between_their_bounds(bounds, decimals):
    numbers = near(bounds, Decimal(1).scaleb(-decimals))
    try:
        expression = to_re(real(bounds))
    except ValueError:
        assert not any(within(bounds, x) for x in numbers)
        return
    for x in numbers:
        text = f"{abs(x) if x == 0 else x:.{decimals}f}"
        assert bool(expression.fullmatch(text)) == within(bounds, x), (bounds, text)
    assert not expression.fullmatch("-0.0")


@given(low=st.integers(-300, 300), size=st.integers(0, 300), step=st.integers(2, 40))
def test_multiples_are_written_out(low, size, step):
    multiples = {n for n in range(low, low + size + 1) if n % step == 0}
    assume(multiples)
    expression = to_re(whole(Bounds(Decimal(low), Decimal(low + size)), step))
    assert {n for n in range(-310, 640) if expression.fullmatch(str(n))} == multiples


@given(
    bounds=st.tuples(st.floats(-1e13, 1e13), st.floats(0, 1e4), st.integers(-4, 4)),
    seed=st.integers(0, 2**32),
    strict=st.booleans(),
)
def test_what_is_said_is_within_the_bounds_as_a_float_too(bounds, seed, strict):
    low = round(bounds[0], bounds[2])
    high = round(low + bounds[1], bounds[2])
    names = ("exclusiveMinimum", "exclusiveMaximum") if strict else ("minimum", "maximum")
    compiled = read_or_reject({"json": dict(zip(names, (low, high), strict=True))})
    for _ in range(3):
        x = float(say(compiled, Random(seed)))
        assert low < x < high if strict else low <= x <= high


@pytest.mark.parametrize(
    ("read", "bounds", "reason"),
    [
        (whole, Bounds(Decimal("2.5"), Decimal("2.9")), "leaves no whole number"),
        (whole, Bounds(Decimal(3), Decimal(4), True, True), "leaves no whole number"),
        (whole, Bounds(Decimal(10**DIGITS)), f"of at most {DIGITS} digits"),
        (real, Bounds(Decimal(1), Decimal(1), True), "leaves no number"),
        (real, Bounds(Decimal(3), Decimal(2)), "leaves no number"),
        (real, Bounds(Decimal("1e300")), f"more than {EXACT} digits"),
        (real, Bounds(Decimal("1e-300")), f"more than {EXACT} digits"),
        (lambda bounds: whole(bounds, 7), Bounds(), "more than the 1000 multiples"),
    ],
)
def test_where_nothing_is_between_or_too_much_it_is_refused(read, bounds, reason):
    with pytest.raises(ValueError, match=reason):
        read(bounds)


def test_a_bound_beyond_what_is_written_is_no_bound():
    assert whole(Bounds(Decimal("-1e300"), Decimal("1e300"))) == whole(Bounds())
    assert whole(Bounds(Decimal("-1e300"), Decimal("1e300"), True, True)) == whole(Bounds())
