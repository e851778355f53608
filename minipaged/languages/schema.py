r"""A JSON schema becomes EBNF: texts that json.loads reads and the schema accepts; what cannot be kept is refused.

    {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "null"}}, "required": ["b"]}

    r0 ::= "{" (r1 r0t1 | r2 r0t2) "}"    properties in their order, and those not required may be missing
    r1 ::= "\"a\": " integer              each schema has a rule of its own, named for its place: where one leads to
                                          itself, its rule does

Not all that a schema allows is said, but whatever is said fits. One line, blanks as json.dumps puts them; no property
that is not named, unless `additionalProperties` alone says what they are; all of prefixItems. A keyword is kept exactly
or refused, with its place, and so is one that nobody knows: "maxlength" would limit nothing. Without a type, keywords
say which is meant. (From level 03.)"""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import combinations
from typing import Any
from urllib.parse import unquote

from .apart import OF_VALUES, exclude
from .ebnf import any_of, literal
from .shapes import KEYWORDS, READERS
from .strings import CHARACTER

NOTES = {"title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly", "$comment"}
NOTES |= {"$schema", "$defs", "definitions"}
COMPOSED = ("$ref", "const", "enum", "anyOf", "oneOf", "allOf")
KNOWN = NOTES.union(COMPOSED, ["type"], *KEYWORDS.values())
MAX_BRANCHES = 200  # of oneOf: each is held against each
BASE = rf"""
value ::= object | array | string | number | "true" | "false" | "null"
object ::= "{{" (string ": " value (", " string ": " value)*)? "}}"
array ::= "[" (value (", " value)*)? "]"
string ::= "\"" character* "\""
character ::= {CHARACTER}
number ::= "-"? ("0" | [1-9] [0-9]{{0,14}}) ("." [0-9]{{1,15}})? ([eE] [+\-]? [0-9]{{1,2}})?
integer ::= "0" | "-"? [1-9] [0-9]{{0,17}}
"""


def to_ebnf(source: dict[str, Any] | str) -> tuple[str, dict[str, str]]:
    """source: a schema, or the text of one. The grammar, and where in the schema each of its rules comes from.

    Raises ValueError with the keyword that cannot be kept, and its place."""
    try:
        schema = Schema(json.loads(source if isinstance(source, str) else json.dumps(source)))
        top = schema.rule("#", schema.root)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    rules = [f"{name} ::= {body}\n" for name, body in schema.bodies.items()]
    return f"root ::= {top}\n{''.join(rules)}{BASE}", {"root": "#", **schema.places}


class RefusalError(ValueError):
    """With the place in its sentence."""


@contextmanager
def at(place: str) -> Iterator[None]:
    """Say where it is, of what is refused inside: the sentence begins with its keyword, if it is about one."""
    try:
        yield
    except RefusalError:
        raise
    except ValueError as error:
        keyword, _, reason = str(error).partition(" ")
        sentence = f"{keyword} at {place} {reason}" if keyword in KNOWN else f"{place} cannot be said: {error}"
        raise RefusalError(sentence) from error


class Schema:
    """One schema on its way."""

    def __init__(self, root: Any):
        self.root = root
        self.names: dict[str, str] = {}  # of rules, by the place of their schema
        self.places: dict[str, str] = {}  # by the names of rules
        self.bodies: dict[str, str] = {}  # by the names of rules

    def rule(self, place: str, schema: Any) -> str:
        """The rule of the schema in this place; one that leads to itself finds its name there already."""
        if place not in self.names:
            name = self.names[place] = f"r{len(self.names)}"
            self.places[name], self.bodies[name] = place, self.read(place, schema)
        return self.names[place]

    def read(self, place: str, schema: Any) -> str:
        if schema is True:
            return "value"
        if not isinstance(schema, dict):
            reason = "allows nothing" if schema is False else f"must be a schema, not {schema!r:.60}"
            raise RefusalError(f"{place} {reason}")
        if unknown := schema.keys() - KNOWN - ({"$id"} if place == "#" else set()):
            raise RefusalError(f"{min(unknown, key=str)} at {place} is not supported")
        if composed := [keyword for keyword in COMPOSED if keyword in schema]:
            return self.compose(place, schema, composed[0])
        return self.shape(place, schema)

    def shape(self, place: str, schema: dict[str, Any]) -> str:
        """By its types, or those that its keywords are about."""

        def inner(path: str, one: Any) -> str:
            return self.rule(f"{place}/{path}", one)

        ways = []
        with at(place):
            for kind in list_kinds(schema):
                body, more = READERS[kind](schema, inner, self.names[place])
                self.bodies |= more
                ways.append(body)
        return any_of(ways) if ways else "value"

    def compose(self, place: str, schema: dict[str, Any], keyword: str) -> str:
        is_named, value = keyword in ("const", "enum"), schema[keyword]
        if rest := schema.keys() - NOTES - {keyword, "type" if is_named else keyword, "$id"}:
            raise RefusalError(f"{keyword} at {place} goes with no {min(rest)} beside it")
        with at(place):
            if is_named:
                return name_values(schema, [value] if keyword == "const" else value)
            if keyword == "$ref":
                pointer, target = self.refer(value)
                return self.rule(pointer, target)
            if not isinstance(value, list) or not value:
                raise ValueError(f"{keyword} must be a list of schemas, not {value!r:.60}")
            if keyword == "allOf" and len(value) > 1:
                raise ValueError("allOf is not supported for more than one schema")
            if keyword == "oneOf":
                self.check_apart(value)
        return any_of(self.rule(f"{place}/{keyword}/{i}", one) for i, one in enumerate(value))

    def check_apart(self, schemas: list[Any]) -> None:
        if len(schemas) > MAX_BRANCHES:
            raise ValueError(f"oneOf is not supported for more than {MAX_BRANCHES} schemas")
        for (i, ours), (j, theirs) in combinations(enumerate(schemas), 2):
            if not exclude(ours, theirs, self.resolve):
                raise ValueError(f"oneOf is not supported where a value might fit two: {i} and {j}")

    def resolve(self, schema: Any) -> Any:
        """What it is, if it is only a reference."""
        seen = set()
        while isinstance(schema, dict) and isinstance(pointer := schema.get("$ref"), str) and pointer not in seen:
            seen.add(pointer)
            _, schema = self.refer(pointer)
        return schema

    def refer(self, pointer: Any) -> tuple[str, Any]:
        """The place that a reference means, and what is there."""
        if not isinstance(pointer, str) or not (pointer + "/").startswith("#/"):
            raise ValueError(f"$ref must lead to a place in this schema, like #/$defs/name, not to {pointer!r:.60}")
        target = self.root
        for step in pointer.split("/")[1:]:
            name = unquote(step).replace("~1", "/").replace("~0", "~")
            try:
                target = target[read_index(name) if isinstance(target, list) else name]
            except (KeyError, IndexError, TypeError, ValueError):
                raise ValueError(f"$ref leads to {pointer!r:.60}, where nothing is") from None
        return pointer, target


def read_index(step: str) -> int:
    """Of a list, as pointers write it: int would read more. Raises ValueError."""
    if not re.fullmatch("0|[1-9][0-9]*", step):
        raise ValueError
    return int(step)


def list_kinds(schema: dict[str, Any]) -> list[str]:
    """The types that it allows; without any, those that its keywords are about."""
    if "type" not in schema:
        return [kind for kind, keywords in KEYWORDS.items() if keywords & schema.keys()]
    given = schema["type"]
    kinds = given if isinstance(given, list) else [given]
    if not kinds or not all(isinstance(kind, str) and kind in KEYWORDS for kind in kinds):
        raise ValueError(f"type must be one or several of {', '.join(KEYWORDS)}, not {given!r:.60}")
    return kinds


def name_values(schema: dict[str, Any], values: Any) -> str:
    """One of these, and of a type that is given beside them."""
    if not isinstance(values, list):
        raise ValueError(f"enum must be a list of values, not {values!r:.60}")
    kinds = set(list_kinds(schema)) if "type" in schema else {*KEYWORDS}
    fitting = [value for value in values if kinds & name_kinds(value)]
    if not fitting:
        raise ValueError(f"{'const' if 'const' in schema else 'enum'} allows no value, of this type at least")
    return any_of(literal(json.dumps(value, ensure_ascii=False, allow_nan=False)) for value in fitting)


def name_kinds(value: Any) -> set[str]:
    kind = OF_VALUES.get(type(value), "object")
    is_whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    return {kind, "integer"} if kind == "number" and is_whole else {kind}
