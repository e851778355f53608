"""Grammars are written without loss, and those without an end are found."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xgrammar import Grammar

from minipaged.languages.ebnf import EVERYTHING, common, find_endless, find_macros, literal, merge, names_nul, others
from minipaged.structured import read

from .saying import allows, compile_grammar

SETS = st.frozensets(st.integers(1, 40))


def ranges(members):
    return merge((one, one) for one in members)


def members(found, last=60):
    return {one for a, b in found for one in range(a, min(b, last) + 1)}


@given(ours=SETS, theirs=SETS)
def test_ranges_are_sets(ours, theirs):
    assert members(common(ranges(ours), ranges(theirs))) == ours & theirs
    assert members(others(ranges(ours))) == {*range(1, 61)} - ours
    assert others(others(ranges(ours))) == ranges(ours)
    assert others(()) == EVERYTHING


@given(text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1))
def test_a_choice_is_that_text_and_no_other(text):
    compiled = compile_grammar({"choice": [text]})
    assert allows(compiled, text)
    assert not allows(compiled, text[:-1])
    assert not allows(compiled, text + "x")


@pytest.mark.parametrize("text", ["\x01b", "\x1f0", "\u00410", "\\", '"', "\\u0041", "a\nb", "é1", "\x7ff"])
def test_digits_behind_an_escape_are_no_part_of_it(text):
    assert allows(compile_grammar({"choice": [text]}), text)


@pytest.mark.parametrize(("text", "lack"), [("a\0b", "a NUL"), ("\ud800", "a lone surrogate")])
def test_what_cannot_be_said_is_refused(text, lack):
    with pytest.raises(ValueError, match=f"holds {lack}"):
        literal(text)
    with pytest.raises(ValueError, match="this choice is not understood"):
        read({"choice": ["x", text]})


@pytest.mark.parametrize(
    ("grammar", "endless"),
    [
        ('root ::= root "a"', ["root"]),
        ("root ::= root", ["root"]),
        ('root ::= "a" | b\nb ::= "c" b', ["b"]),
        ('root ::= a b\na ::= "x" | a "y"\nb ::= c\nc ::= b', ["root", "b", "c"]),
        ("root ::= []", ["root", "nothing[]"]),
        ('root ::= x?\nx ::= "a" x', ["x"]),
        ('root ::= x{2}\nx ::= "a" x', ["root", "x"]),
        ('root ::= "a"\nx ::= "a" x', []),
        ('root ::= "a" root | "b"', []),
        ('root ::= x x x\nx ::= "b" | x x', []),
        ('root ::= ""', []),
        ('root ::= "::= x | (= y)" [|(] x\nx ::= "\\"" | [^"]', []),
        ('root ::= "(" root ")" | y* z+\ny ::= "|"\nz ::= y (= "q" y)', []),
    ],
)
def test_rules_that_no_text_completes_are_found(grammar, endless):
    assert sorted(find_endless(str(Grammar.from_ebnf(grammar)))) == sorted(endless)
    if endless:
        with pytest.raises(ValueError, match="no text ever completes"):
            read({"grammar": grammar})
    else:
        read({"grammar": grammar})


@pytest.mark.parametrize(
    ("grammar", "macro"),
    [
        ("root ::= Token(2)", "Token"),
        ('root ::= "a" ExcludeToken(2)?', "ExcludeToken"),
        ('root ::= Token(2)\nToken ::= "x"', "Token"),
        ('root ::= TagDispatch(("<a>", x))\nx ::= "y"', "TagDispatch"),
        ('root ::= x ("(" | "b(") x{1,2}\nx ::= [(] "y("', None),
    ],
)
def test_macros_that_name_tokens_or_hide_their_end_are_refused_by_name(grammar, macro):
    assert find_macros(str(Grammar.from_ebnf(grammar))) == ([macro] if macro else [])
    if macro:
        with pytest.raises(ValueError, match=rf"{macro}\(...\) is not supported"):
            read({"grammar": grammar})


def test_a_chain_of_many_rules_is_followed_in_its_length():
    n = 3000
    for order in (range(n), reversed(range(n))):
        rules = [f'r{i} ::= (("a" r{i + 1}))' for i in order]
        printed = "\n".join(["root ::= ((r0))", *rules, f'r{n} ::= (("b"))'])
        assert find_endless(printed) == []
    assert len(find_endless("\n".join(["root ::= ((r0))", *rules]))) == n + 2


@pytest.mark.parametrize(
    ("grammar", "names"),
    [
        (r'root ::= "a\0b"', True),
        (r'root ::= "a\x00"', True),
        (r'root ::= "a\u0000-"', True),
        (r"root ::= [\0]", True),
        ('root ::= "a\0"', True),
        (r'root ::= "a\x0041"', False),
        (r'root ::= "\\0"', False),
        (r"root ::= [\0-\x1f]", False),
        ("root ::= [0]", False),
    ],
)
def test_a_nul_is_refused_where_it_would_be_lost(grammar, names):
    assert names_nul(grammar) == names
    if names:
        with pytest.raises(ValueError, match="NUL"):
            read({"grammar": grammar})
    else:
        read({"grammar": grammar})
