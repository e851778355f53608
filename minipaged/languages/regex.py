r"""A pattern of Python's re becomes EBNF: exactly the texts that re.fullmatch accepts, but for those with a NUL.

    to_ebnf("(?:yes|no)[!.]?")      ("yes" | "no") ([!\.]){0,1}

Python's own parser reads it, so its dialect is Python's, Unicode and all: \d is every decimal digit there is, a dot no
newline. ^, \A, $ and \Z may stand where they say nothing new, at the very beginning or end of what is matched. Refused
by name is what a grammar cannot look back for: lookaround, word borders, backreferences, conditions, atomic groups,
possessive repeats; and the flags i, m and L.

That parser, `re._parser`, is private, and no public one gives a tree: tests/languages/test_regex.py reads its source
and names what a newer Python's can say beyond what is read here; an opcode that is unknown is refused, not guessed.

Inside a JSON string (`spell=in_json`) a character is what json.dumps makes of it, and each must be one to Python's re
and to ECMA's as well, since validators use either. (From level 03.)"""

import re
import re._constants as op  # type: ignore[import-not-found]
import re._parser as parser  # type: ignore[import-not-found]
from collections.abc import Callable
from functools import cache
from typing import Any

from .ebnf import EVERYTHING, Ranges, any_of, characters, common, merge, others, times

Spell = Callable[[Ranges], str]

REFUSED = {
    op.ASSERT: "lookaround",
    op.ASSERT_NOT: "lookaround",
    op.FAILURE: "lookaround",  # (?!), from Python 3.13 on
    op.GROUPREF: "a backreference",
    op.GROUPREF_EXISTS: "a condition",
    op.ATOMIC_GROUP: "an atomic group",
    op.POSSESSIVE_REPEAT: "a possessive repeat",
}
ONE_CHARACTER = (op.LITERAL, op.NOT_LITERAL, op.ANY, op.IN)
FLAGS = {re.IGNORECASE: "i", re.MULTILINE: "m", re.LOCALE: "L"}
BORDERS = {op.AT_BEGINNING: "^", op.AT_BEGINNING_STRING: r"\A", op.AT_END: "$", op.AT_END_STRING: r"\Z"}
CATEGORIES = {
    op.CATEGORY_DIGIT: r"\d",
    op.CATEGORY_NOT_DIGIT: r"\D",
    op.CATEGORY_SPACE: r"\s",
    op.CATEGORY_NOT_SPACE: r"\S",
    op.CATEGORY_WORD: r"\w",
    op.CATEGORY_NOT_WORD: r"\W",
}
LINE_ENDS, BYTE_ORDER_MARK = ((0xA, 0xA), (0xD, 0xD), (0x2028, 0x2029)), (0xFEFF, 0xFEFF)  # ECMA's no-dots; its blank
ESCAPED = {ord(one): f'"\\\\" "{name}"' for one, name in zip("\b\t\n\f\r", "btnfr", strict=True)}
ESCAPED |= {ord('"'): r'"\\\""', ord("\\"): r'"\\\\"'}
UNESCAPED = others(merge([(0, 0x1F), *((one, one) for one in ESCAPED)]))


def to_ebnf(pattern: str, spell: Spell = characters) -> str:
    """Raises ValueError with the reason."""
    try:
        return Pattern(pattern, spell).expression
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def in_json(ranges: Ranges) -> str:
    """Any one of these that needs no escape, or else any that has a short one: masks of repeated escapes are slow."""
    if plain := common(ranges, UNESCAPED):
        return characters(plain)
    ways = [escaped for one, escaped in ESCAPED.items() if common(ranges, ((one, one),))]
    if not ways:
        raise ValueError("no character is left that could be said")
    return any_of(ways) if len(ways) > 1 else ways[0]


class Pattern:
    """One pattern, read. min_width, max_width: of what it matches, in characters."""

    def __init__(self, pattern: str, spell: Spell):
        self.spell, self.is_json = spell, spell is in_json
        try:
            tree = parser.parse(pattern)
        except (re.error, OverflowError) as error:
            raise ValueError(str(error)) from error
        self.flags = self.check_flags(tree.state.flags)
        self.min_width, self.max_width = tree.getwidth()
        self.expression = self.sequence(list(tree), self.flags, True, True)

    def check_flags(self, flags: int) -> int:
        for flag, name in FLAGS.items():
            if flags & flag:
                raise ValueError(f"the flag {name} is not supported")
        return flags

    def sequence(self, items: list[Any], flags: int, first: bool, last: bool) -> str:
        """first, last: whether nothing of the match stands before it, or behind."""
        says = [kind is not op.AT for kind, _ in items]
        begins, ends = (
            says.index(True) if any(says) else len(says),
            len(says) - says[::-1].index(True) if any(says) else 0,
        )
        pieces = [
            self.item(kind, value, flags, first and i <= begins, last and i >= ends - 1)
            for i, (kind, value) in enumerate(items)
        ]
        return " ".join(piece for piece in pieces if piece) or '""'

    def item(self, kind: Any, value: Any, flags: int, first: bool, last: bool) -> str:
        if kind in REFUSED:
            raise ValueError(f"{REFUSED[kind]} is not supported")
        if kind is op.AT:
            return self.border(value, first, last)
        if kind is op.BRANCH:
            return any_of(self.sequence(list(branch), flags, first, last) for branch in value[1])
        if kind is op.SUBPATTERN:
            _, added, dropped, inner = value
            return f"({self.sequence(list(inner), self.check_flags(flags | added) & ~dropped, first, last)})"
        if kind in (op.MAX_REPEAT, op.MIN_REPEAT):  # which of them matters to groups only
            low, high, inner = value
            return self.repeat(low, high, inner, flags, first, last)
        if kind not in ONE_CHARACTER:
            raise ValueError(f"what this Python's re calls {kind} is not supported")
        return self.spell(self.members(kind, value, flags))

    def border(self, kind: Any, first: bool, last: bool) -> str:
        if kind not in BORDERS:
            raise ValueError("a word border is not supported")
        if not (first if kind in (op.AT_BEGINNING, op.AT_BEGINNING_STRING) else last):
            raise ValueError(f"{BORDERS[kind]} can match at the border of the text only")
        return ""

    def repeat(self, low: int, high: int, inner: Any, flags: int, first: bool, last: bool) -> str:
        once = high == 1
        item = f"({self.sequence(list(inner), flags, first and once, last and once)})"
        return times(item, low, None if high == op.MAXREPEAT else high)

    def members(self, kind: Any, value: Any, flags: int) -> Ranges:
        """The characters of a class, a dot or a letter."""
        ours = evaluate(kind, value, flags)
        if self.is_json:  # ECMA's classes know ASCII only
            ours = common(ours, evaluate(kind, value, flags | re.ASCII))
            ours = common(ours, others(LINE_ENDS)) if kind is op.ANY and not flags & re.DOTALL else ours
        return ours


def evaluate(kind: Any, value: Any, flags: int) -> Ranges:
    if kind is op.LITERAL:
        return common(((value, value),), EVERYTHING)
    if kind is op.NOT_LITERAL:
        return others(((value, value),))
    if kind is op.ANY:
        return EVERYTHING if flags & re.DOTALL else others(((0xA, 0xA),))
    negated, found = value[0][0] is op.NEGATE, list[tuple[int, int]]()
    for inner, member in value[negated:]:
        if inner is op.CATEGORY:
            found.extend(category(CATEGORIES[member], bool(flags & re.ASCII)))
        else:
            found.append((member, member) if inner is op.LITERAL else member)
    return others(merge(found)) if negated else common(merge(found), EVERYTHING)


@cache
def category(name: str, is_ascii: bool) -> Ranges:
    r"""What \d, \w, \s and their opposites match, as Python's re says; ECMA's \s knows one blank more."""
    everything = "".join(chr(code) for a, b in EVERYTHING for code in range(a, b + 1))
    found = re.finditer(f"{name}+", everything, re.ASCII if is_ascii else re.UNICODE)
    return common(merge((ord(one.group()[0]), ord(one.group()[-1])) for one in found), EVERYTHING)
