r"""What a schema says of one type of values: objects, arrays, strings, numbers.

    properties a, b, c; b required      "{" (a t1 | b t2) "}"      t1 ::= ", " b t2      t2 ::= (", " c)?
    minItems 2, maxItems 3              "[" item (", " item){1,2} "]"

The first property that is there has no comma before it: it is any of those up to the first that is required; each may
be followed by those behind it. A reader is given the schema, a way to the rules of the schemas within, and a name for
rules of its own. Raises ValueError with the keyword first. (From level 03.)"""

import json
import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from .ebnf import MOST, any_of, literal, times
from .numbers import Bounds, real, whole
from .strings import read_string

Inner = Callable[[str, Any], str]  # a path from here and the schema there -> its rule
Rules = dict[str, str]
KEYWORDS: dict[str, set[str]] = {
    "object": {"properties", "required", "additionalProperties", "minProperties", "maxProperties"},
    "array": {"items", "prefixItems", "minItems", "maxItems", "uniqueItems"},
    "string": {"minLength", "maxLength", "pattern", "format"},
    "number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
    "integer": set(),  # a number's
    "boolean": set(),
    "null": set(),
}


def read_object(schema: dict[str, Any], inner: Inner, name: str) -> tuple[str, Rules]:
    given, others = schema.get("properties", {}), schema.get("additionalProperties", "properties" not in schema)
    required = schema.get("required", [])
    if not isinstance(given, dict):
        raise ValueError(f"properties must be an object, not {given!r:.60}")
    if not isinstance(others, bool | dict):
        raise ValueError(f"additionalProperties must be a schema, not {others!r:.60}")
    if not isinstance(required, list) or not all(isinstance(one, str) for one in required):
        raise ValueError(f"required must be a list of names, not {required!r:.60}")
    low, high = counts(schema, "minProperties", "maxProperties")
    if not (given or required):
        return read_map(others, low, high, inner), {}
    if unnamed := [one for one in required if one not in given]:
        if schema.get("additionalProperties", True) is False:
            raise ValueError(f"required names {unnamed[0]!r:.40}, which properties does not, and no others are allowed")
        given = given | dict.fromkeys(unnamed, schema.get("additionalProperties", True))
    if low > len({*required}) or (high is not None and high < len(given)):
        raise ValueError(f"{'minProperties' if low > len({*required}) else 'maxProperties'} is not supported here")
    rules = {one: pair(one, inner(f"properties/{spell(one)}", value)) for one, value in given.items()}
    return lay_out(rules, {*required}, name)


def spell(name: str) -> str:
    """In a pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def pair(name: str, rule: str) -> str:
    return f"{literal(json.dumps(name, ensure_ascii=False) + ': ')} {rule}"


def lay_out(pairs: dict[str, str], required: set[str], name: str) -> tuple[str, Rules]:
    rules, firsts, names = Rules(), list[str](), list(pairs)
    for i, one in enumerate(names):
        follows = f'", " {name}p{i} {name}t{i + 1}'
        rules[f"{name}p{i}"] = pairs[one]
        rules[f"{name}t{i}"] = follows if one in required else f'(", " {name}p{i})? {name}t{i + 1}'
    rules[f"{name}t{len(names)}"] = '""'
    for i, one in enumerate(names):
        firsts.append(f"{name}p{i} {name}t{i + 1}")
        if one in required:
            break
    else:
        firsts.append('""')
    return f'"{{" {any_of(firsts)} "}}"', rules


def read_map(others: Any, low: int, high: int | None, inner: Inner) -> str:
    """Any names. A name may come twice, and then counts once."""
    if low > 1:
        raise ValueError("minProperties is not supported where properties have no names")
    if others is False or high == 0:
        if low:
            raise ValueError("minProperties asks for properties, and none are allowed")
        return '"{}"'
    one = f'string ": " {inner("additionalProperties", others)}'
    return enclose("{", one, one, low, high, "}")


def enclose(begin: str, first: str, other: str, low: int, high: int | None, end: str) -> str:
    """Between low and high of these, with commas; the first may be something else."""
    more = times(f'(", " {other})', max(0, low - 1), None if high is None else high - 1)
    return f'"{begin}" {first} {more} "{end}"' if low else f'"{begin}" ({first} {more})? "{end}"'


def read_array(schema: dict[str, Any], inner: Inner, name: str) -> tuple[str, Rules]:
    prefix, items = schema.get("prefixItems", []), schema.get("items", True)
    if schema.get("uniqueItems") not in (None, False):
        raise ValueError("uniqueItems is not supported")
    if not isinstance(prefix, list):
        raise ValueError(f"prefixItems must be a list of schemas, not {prefix!r:.60}")
    if isinstance(items, list):
        raise ValueError("items must be one schema; a list of them is called prefixItems")
    low, high = counts(schema, "minItems", "maxItems")
    first = [inner(f"prefixItems/{i}", one) for i, one in enumerate(prefix[:high])]
    low, most = max(0, low - len(first)), None if high is None else high - len(first)
    if items is False or (prefix and "items" not in schema and not low):
        most = 0  # nobody said what else there might be
    if low and most == 0:
        raise ValueError("minItems asks for more than there may be")
    if most == 0:
        return f'"[" {comma(first)} "]"' if first else '"[]"', {}
    item = inner("items", items)
    if first:
        more = times(f'(", " {item})', low, most)
        return f'"[" {comma(first)} {more} "]"', {}
    return enclose("[", item, item, low, most, "]"), {}


def comma(rules: list[str]) -> str:
    return ' ", " '.join(rules)


def read_text(schema: dict[str, Any], inner: Inner, name: str) -> tuple[str, Rules]:
    low, high = counts(schema, "minLength", "maxLength")
    return read_string(low, high, schema.get("pattern"), schema.get("format")), {}


def counts(schema: dict[str, Any], low: str, high: str) -> tuple[int, int | None]:
    for keyword in (low, high):
        value = schema.get(keyword, 0)
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0 or value != value // 1:
            raise ValueError(f"{keyword} must be a whole number >= 0, not {value!r:.40}")
    least, most = int(schema.get(low, 0)), int(schema[high]) if high in schema else None
    if least > MOST:
        raise ValueError(f"{low} {least} is more than any answer holds")
    if most is not None and least > most:
        raise ValueError(f"{low} is {least}, more than {high} {most}")
    return least, most


def read_number(schema: dict[str, Any], inner: Inner, name: str) -> tuple[str, Rules]:
    bounds, step = read_bounds(schema), schema.get("multipleOf")
    if step is not None:
        return read_whole(schema, inner, name)
    try:
        return "number" if bounds == Bounds() else real(bounds), {}
    except ValueError as error:
        raise ValueError(f"{name_bound(schema)} {error}") from error


def read_whole(schema: dict[str, Any], inner: Inner, name: str) -> tuple[str, Rules]:
    bounds, step = read_bounds(schema), schema.get("multipleOf", 1)
    if isinstance(step, bool) or not isinstance(step, int | float) or step < 1 or step != int(step):
        raise ValueError(f"multipleOf is supported for whole numbers >= 1 only, not {step!r:.40}")
    try:
        return "integer" if (bounds, step) == (Bounds(), 1) else whole(bounds, int(step)), {}
    except ValueError as error:
        raise ValueError(f"{'multipleOf' if step > 1 else name_bound(schema)} {error}") from error


def name_bound(schema: dict[str, Any]) -> str:
    return next(one for one in ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum") if one in schema)


def read_bounds(schema: dict[str, Any]) -> Bounds:
    low, above_low = stricter(schema, "minimum", "exclusiveMinimum", max)
    high, below_high = stricter(schema, "maximum", "exclusiveMaximum", min)
    return Bounds(low, high, above_low, below_high)


def stricter(schema: dict[str, Any], keyword: str, strict: str, choose: Any) -> tuple[Decimal | None, bool]:
    given = {one: number(one, schema[one]) for one in (keyword, strict) if one in schema}
    if not given:
        return None, False
    bound = choose(given.values())
    return bound, given.get(strict) == bound


def number(keyword: str, value: Any) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{keyword} must be a number, not {value!r:.40}")
    return Decimal(str(value))


def read_constant(text: str) -> Callable[[dict[str, Any], Inner, str], tuple[str, Rules]]:
    return lambda schema, inner, name: (text, {})


READERS: dict[str, Callable[[dict[str, Any], Inner, str], tuple[str, Rules]]] = {
    "object": read_object,
    "array": read_array,
    "string": read_text,
    "number": read_number,
    "integer": read_whole,
    "boolean": read_constant('("true" | "false")'),
    "null": read_constant('"null"'),
}
