"""Patterns are Python's: what may be said is what re.fullmatch accepts, and what cannot be kept is refused by name."""

import inspect
import json
import re
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipaged.languages.regex import BORDERS, CATEGORIES, ONE_CHARACTER, REFUSED, Pattern, in_json, op, parser, to_ebnf

from .saying import allows, compile_grammar, read_or_reject, say

LETTERS = st.sampled_from(["a", "b", "é", "😀", r"\.", r"\n", "-", '"', r"\\", "٣", r"\x41", "\t"])
CLASSES = st.sampled_from(
    [
        ".",
        r"\d",
        r"\D",
        r"\w",
        r"\W",
        r"\s",
        r"\S",
        "[a-c]",
        "[^a]",
        r"[^\d\W]",
        r"[\w-]",
        r"[^\n\r]",
        "[é-ü.]",
        r"[\Wa]",
    ]
)
FRAMES = [
    "({})",
    "(?:{})",
    "({})?",
    "(?:{})*",
    "(?:{}){{0,2}}",
    "(?:{})+?",
    "(?P<x>{})",
    "(?s:{})",
    "(?a:{})",
    "^{}",
    "{}$",
]


def wrap(inner):
    return st.one_of(
        st.builds(lambda frame, one: frame.format(one), st.sampled_from(FRAMES), inner),
        st.lists(inner, min_size=2, max_size=3).map("".join),
        st.lists(inner, min_size=2, max_size=3).map("|".join),
    )


PATTERNS = st.recursive(st.one_of(LETTERS, CLASSES), wrap, max_leaves=6)


@given(pattern=PATTERNS, seed=st.integers(0, 2**32))
def test_what_is_said_fits_the_pattern(pattern, seed):
    compiled, rng = read_or_reject({"regex": pattern}), Random(seed)
    for _ in range(3):
        text = say(compiled, rng, length=8)
        assert text is None or re.fullmatch(pattern, text), (pattern, text)


@given(data=st.data(), pattern=PATTERNS)
def test_what_fits_the_pattern_may_be_said(data, pattern):
    compiled = read_or_reject({"regex": pattern})
    text = data.draw(st.from_regex(pattern, fullmatch=True).filter(lambda one: "\0" not in one and is_unicode(one)))
    assert allows(compiled, text), (pattern, text)


def is_unicode(text):
    return not any("\ud800" <= one <= "\udfff" for one in text)


@given(pattern=PATTERNS, seed=st.integers(0, 2**32))
def test_within_json_it_fits_too_for_python_and_for_ascii_minds(pattern, seed):
    compiled, rng = read_or_reject({"json": {"type": "string", "pattern": pattern}}), Random(seed)
    text = say(compiled, rng, length=8)
    if text is not None:
        assert re.fullmatch(pattern, json.loads(text))
        assert re.fullmatch(pattern, json.loads(text), re.ASCII)


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("a$b", r"\$ can match at the border"),
        ("a^b", r"\^ can match at the border"),
        (r"a?\Ab", r"\\A can match at the border"),
        (r"(a\Z)+", r"\\Z can match at the border"),
        ("(?=a)a", "lookaround"),
        ("(?<!a)b", "lookaround"),
        ("(?!)a", "lookaround"),
        (r"\ba", "a word border"),
        (r"a\Bb", "a word border"),
        (r"(a)\1", "a backreference"),
        (r"(a)?(?(1)b|c)", "a condition"),
        ("a*+a", "a possessive repeat"),
        ("(?>a*)a", "an atomic group"),
        ("(?i)a", "the flag i"),
        ("(?i:a)", "the flag i"),
        ("(?m)^a", "the flag m"),
        (r"a\h", r"bad escape \\h"),
        (r"\p{L}", r"bad escape \\p"),
        ("(", "unterminated subpattern"),
        ("a\0", "no character is left"),
        (r"[^\s\S]", "no character is left"),
        ("a{2000000}", "2000000 repetitions"),
        pytest.param("(" * 5000 + ")" * 5000, "nested too deeply", id="deep"),
    ],
)
def test_what_cannot_be_kept_is_refused_by_name(pattern, reason):
    with pytest.raises(ValueError, match=reason):
        to_ebnf(pattern)


@pytest.mark.parametrize(
    ("pattern", "texts", "others"),
    [
        (r"\Aa\Z", ["a"], ["a\n"]),
        ("^a$", ["a"], ["a\n"]),
        ("(^a|b)c", ["ac", "bc"], ["c"]),
        ("a.b", ["axb", "a\rb", "a\u2028b"], ["a\nb"]),
        ("(?s)a.b", ["a\nb"], ["a\0b"]),
        (r"\d", ["7", "٣"], ["x", "²"]),
        (r"(?a)\d", ["7"], ["٣"]),
        (r"\s", [" ", "\t", "\u00a0", "\x1f"], ["\u200b", "\ufeff"]),
        ("", [""], ["a"]),
        ("a|", ["a", ""], ["b"]),
        ("(?x) a b # c", ["ab"], ["a b"]),
        ("a{0}b", ["b"], ["ab"]),
        ("(a*)*b", ["b", "aab"], ["a"]),
        ("x{2,}?", ["xx", "xxxx"], ["x"]),
        ("[]a^-]", ["]", "a", "^", "-"], ["b"]),
    ],
)
def test_it_means_what_it_means_to_python(pattern, texts, others):
    compiled = compile_grammar({"regex": pattern})
    assert [allows(compiled, text) for text in texts] == [True] * len(texts)
    assert [allows(compiled, text) for text in others] == [False] * len(others)
    assert all(re.fullmatch(pattern, text) for text in texts)
    assert not any(re.fullmatch(pattern, text) for text in others if "\0" not in text)


def test_all_that_pythons_parser_can_say_is_read_or_refused_by_name():
    """It is private: where this fails, a newer Python's says something new, and regex.py has to learn what it means."""
    codes = {str(code) for code in (*op.OPCODES, *op.ATCODES, *op.CHCODES)}
    said = codes & {*re.findall(r"\b[A-Z_]+\b", inspect.getsource(parser))}
    parts = [op.AT, op.BRANCH, op.SUBPATTERN, op.MAX_REPEAT, op.MIN_REPEAT, op.CATEGORY, op.NEGATE, op.RANGE]
    others = [op.AT_BOUNDARY, op.AT_NON_BOUNDARY, op.SUCCESS]  # refused, both; and measured only
    known = {str(code) for code in (*parts, *ONE_CHARACTER, *REFUSED, *BORDERS, *CATEGORIES, *others)}
    assert said >= {"IN", "CATEGORY_DIGIT", "AT_END_STRING"}, "its source is not read as it should be"
    assert said - known == set()


def test_an_opcode_that_nobody_knows_is_refused_not_guessed():
    with pytest.raises(ValueError, match="what this Python's re calls SUCCESS is not supported"):
        Pattern("a", in_json).item(op.SUCCESS, None, 0, True, True)


def test_in_json_a_character_is_what_json_makes_of_it():
    assert in_json(((0x0A, 0x0A),)) == r'"\\" "n"'
    for pattern, text in ((r"\n", r'"\n"'), ('"', r'"\""'), (r"\\", r'"\\"'), ("é", '"é"')):
        compiled = compile_grammar({"json": {"type": "string", "pattern": pattern}})
        assert allows(compiled, text)
        assert re.fullmatch(pattern, json.loads(text))
    with pytest.raises(ValueError, match="no character is left"):
        to_ebnf(r"\x01", in_json)
