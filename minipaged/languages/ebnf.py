r"""What may be said is written in EBNF: literals, classes, rules that name each other; xgrammar compiles it.

    literal("no\n")                    "no" [\U0000000a]
    characters(((97, 99),))            [\U00000061-\U00000063]
    times("x", 2, None)                x{2,}
    find_endless(a grammar)            its rules that no sentence ever completes

        root ::= "a" | b               b begins and never ends: who says "c" has no way out,
        b    ::= "c" b                 and root ::= root "a" has not even a beginning

Characters are ranges of code points, ascending and apart; lone surrogates are none, and NUL is left out, which xgrammar
loses. Escapes have eight digits, since it reads on for as long as it sees digits. No tensors. (From level 03.)"""

import re
from collections import defaultdict
from collections.abc import Iterable

Ranges = tuple[tuple[int, int], ...]  # first and last code point of each

LAST = 0x10FFFF
EVERYTHING: Ranges = ((0x1, 0xD7FF), (0xE000, LAST))
MOST = 10**6  # repetitions: no answer is longer
EMPTY_CLASS = "[]"  # as xgrammar prints a class without members
PIECE = re.compile(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]', re.DOTALL)  # a literal or a class
ESCAPE = re.compile(r"\\(?:(0|[xuU]0+(?![0-9A-Fa-f]))|.)|(\0)", re.DOTALL)  # with a group: of a NUL


def literal(text: str) -> str:
    """Exactly this text. Raises ValueError for a NUL or a lone surrogate."""
    if "\0" in text:
        raise ValueError(f"{text!r:.60} holds a NUL, which cannot be said")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{text!r:.60} holds a lone surrogate, which is no text") from None
    pieces = re.findall(r"[ -~]+|.", text, re.DOTALL)
    return " ".join(quote(piece) if " " <= piece[0] <= "~" else single(piece) for piece in pieces) or '""'


def quote(plain: str) -> str:
    return '"' + plain.replace("\\", "\\\\").replace('"', '\\"') + '"'


def single(character: str) -> str:
    return characters(((ord(character), ord(character)),))


def characters(ranges: Ranges) -> str:
    """Any one of these. Raises ValueError where there is none.

    What is open above is written by what it is not: xgrammar compiles repetitions of that a hundred times as fast."""
    if not ranges:
        raise ValueError("no character is left that could be said")
    if ranges[-1][1] < LAST:
        return f"[{spell(ranges)}]"
    return f"[^{spell(gaps(ranges))}]"


def spell(ranges: Ranges) -> str:
    return "".join(escape(a) if a == b else f"{escape(a)}-{escape(b)}" for a, b in ranges)


def escape(code_point: int) -> str:
    return f"\\U{code_point:08x}"


def times(item: str, low: int, high: int | None) -> str:
    """item: one, or several in parentheses. Raises ValueError for more than any answer holds."""
    if low > MOST:
        raise ValueError(f"{low} repetitions are more than any answer holds")
    return f"{item}{{{low},{'' if high is None else min(high, MOST)}}}"


def any_of(expressions: Iterable[str]) -> str:
    return f"({' | '.join(expressions)})"


def merge(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Ascending and apart, whatever they were."""
    merged: list[tuple[int, int]] = []
    for a, b in sorted(ranges):
        if merged and a <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(b, merged[-1][1])
        else:
            merged.append((a, b))
    return tuple(merged)


def common(ours: Ranges, theirs: Ranges) -> Ranges:
    """Both are ascending and apart: one walk along them."""
    found, i, j = [], 0, 0
    while i < len(ours) and j < len(theirs):
        a, b = max(ours[i][0], theirs[j][0]), min(ours[i][1], theirs[j][1])
        if a <= b:
            found.append((a, b))
        i, j = (i + 1, j) if ours[i][1] < theirs[j][1] else (i, j + 1)
    return tuple(found)


def others(ranges: Ranges) -> Ranges:
    """Every character that is not among these, which are ascending and apart."""
    return common(gaps(ranges), EVERYTHING)


def gaps(ranges: Ranges) -> Ranges:
    """Every code point that is not among these, NUL and surrogates too."""
    borders = [0, *(border for a, b in ranges for border in (a - 1, b + 1)), LAST]
    return tuple((a, b) for a, b in zip(borders[::2], borders[1::2], strict=True) if a <= b)


def names_nul(grammar: str) -> bool:
    r"""Whether somebody's EBNF asks for a NUL, other than as the beginning of a range, [\0-\x1f]."""
    for piece in PIECE.findall(grammar):
        for found in ESCAPE.finditer(piece):
            if found.lastindex and not (piece[0] == "[" and piece[found.end()] == "-"):
                return True
    return False


def find_macros(printed: str) -> list[str]:
    """Of a grammar as xgrammar prints it: what only looks like a rule, Token(2), TagDispatch(...). Some name tokens,
    which are no text, and of none the end can be seen."""
    return re.findall(r"\w+(?=\()", PIECE.sub(" ", printed))


def find_endless(printed: str) -> list[str]:
    """Of a grammar as xgrammar prints it, alternatives of plain sequences: the rules that root leads to, and that no
    sentence completes."""
    rules = {name: body for name, _, body in (line.partition(" ::= ") for line in printed.splitlines()) if body}
    leads, waiting, ended = dict[str, set[str]](), defaultdict[str, list[list[str]]](list), set[str]()
    done = []
    for name, body in rules.items():
        leads[name] = set()
        for needed, optional in read_sequences(body):
            leads[name] |= needed | optional
            left = [name, *needed]  # the rule, and what its sequence still waits for
            for one in needed:
                waiting[one].append(left)
            if not needed:
                done.append(name)
    while done:
        if (name := done.pop()) not in ended:
            ended.add(name)
            for left in waiting[name]:
                left.pop()  # which of them does not matter, only how many
                if len(left) == 1:
                    done.append(left[0])
    return [name for name in reach(leads) if name not in ended]


def read_sequences(body: str) -> list[tuple[set[str], set[str]]]:
    """What each alternative needs in order to end, and what it may do without."""
    bare = PIECE.sub(lambda piece: " nothing[] " if piece.group() == EMPTY_CLASS else " ", body).partition("(=")[0]
    sequences = []
    for sequence in bare.split("|"):
        optional = set(re.findall(r"([\w.\-\[\]]+)\{0, -?\d+\}", sequence))
        needed = set(re.findall(r"[\w.\-\[\]]+", re.sub(r"[\w.\-\[\]]+\{0, -?\d+\}|\{[^}]*\}", " ", sequence)))
        sequences.append((needed, optional))
    return sequences


def reach(leads: dict[str, set[str]]) -> list[str]:
    """From root on; what has no rule ends nowhere either."""
    found, to_do = ["root"], ["root"]
    seen = {"root"}
    while to_do:
        for name in sorted(leads.get(to_do.pop(), set()) - seen):
            seen.add(name)
            found.append(name)
            to_do.append(name)
    return found
