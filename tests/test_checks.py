"""A refusal names the field, the legal range and the value; a wrong type is a TypeError, a wrong value a ValueError."""

import math
import re

import pytest

from minipaged.checks import check_boolean, check_choice, check_integer, check_number, check_token_ids


@pytest.mark.parametrize(
    ("value", "error"), [(0, ValueError), (-1, ValueError), (1.5, TypeError), ("5", TypeError), (True, TypeError)]
)
def test_a_count_is_a_whole_number_and_at_least_its_least(value, error):
    with pytest.raises(error, match=rf"max_tokens must be a whole number >= 1, not {re.escape(repr(value))}"):
        check_integer("max_tokens", value, low=1)


def test_an_integer_may_have_a_most_and_may_be_absent_where_that_means_something():
    check_integer("id", 63, 0, 63)
    check_integer("seed", None, 0, optional=True)
    with pytest.raises(ValueError, match=r"id must be a whole number in \[0, 63\], not 64"):
        check_integer("id", 64, 0, 63)
    with pytest.raises(TypeError):
        check_integer("id", None, 0)


@pytest.mark.parametrize("value", [0, 1.01, -0.5, math.inf, math.nan])
def test_an_open_interval_leaves_out_its_end_and_everything_that_is_not_finite(value):
    with pytest.raises(ValueError, match=rf"top_p must be a number in \(0, 1\], not {value}"):
        check_number("top_p", value, 0, 1, above_low=True)


@pytest.mark.parametrize("value", [0, 1, 0.5])
def test_a_closed_interval_holds_its_ends(value):
    check_number("min_p", value, 0, 1)


@pytest.mark.parametrize("value", ["0.5", None, True, 1j])
def test_a_number_is_a_real_number(value):
    with pytest.raises(TypeError, match="min_p must be a number"):
        check_number("min_p", value, 0, 1)


def test_a_switch_is_true_or_false_and_nothing_like_it():
    check_boolean("ignore_eos", False)
    with pytest.raises(TypeError, match="ignore_eos must be true or false, not 1"):
        check_boolean("ignore_eos", 1)


@pytest.mark.parametrize(("value", "error"), [("gpu", ValueError), (None, TypeError)])
def test_a_choice_names_all_that_there_are(value, error):
    check_choice("device", "cpu", ("cpu", "cuda"))
    with pytest.raises(error, match=f"device must be one of cpu, cuda, not {value!r}"):
        check_choice("device", value, ("cpu", "cuda"))


def test_token_ids_may_come_in_any_order_and_container_but_as_text():
    assert check_token_ids("stop_token_ids", iter([5, 3])) == (5, 3)
    for text in ("53", b"53", 53):
        with pytest.raises(TypeError, match="stop_token_ids must be a list of token ids"):
            check_token_ids("stop_token_ids", text)


@pytest.mark.parametrize(("value", "error"), [(-1, ValueError), (0.5, TypeError), (True, TypeError)])
def test_a_bad_token_id_is_named_by_its_place(value, error):
    with pytest.raises(error, match=r"stop_token_ids\[1\]"):
        check_token_ids("stop_token_ids", [0, value])
