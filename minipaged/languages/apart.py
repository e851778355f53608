"""Two schemas exclude each other if no value fits both; said only where it is plain to see.

    {"type": "string"}             {"type": "null"}                     other types
    {"const": "cat"}               {"enum": ["dog", 3]}                 other values
    {"required": ["kind"], ...}    {"required": ["kind"], ...}          objects whose kinds exclude each other

That is what `oneOf` needs, and all of it that can be kept. Invariant: True is never wrong. (From level 03.)"""

from collections.abc import Callable, Hashable
from typing import Any

TYPES = ("null", "boolean", "number", "string", "array", "object")
OF_VALUES = {type(None): "null", bool: "boolean", int: "number", float: "number", str: "string", list: "array"}
Resolve = Callable[[Any], Any]  # what a schema is, if it is only a reference


def exclude(ours: Any, theirs: Any, resolve: Resolve) -> bool:
    """Whether no value fits both; False also where that takes more than a look."""
    ours, theirs = resolve(ours), resolve(theirs)
    if not (isinstance(ours, dict) and isinstance(theirs, dict)):
        return False
    values, others = list_values(ours), list_values(theirs)
    if values is not None and others is not None:
        return {freeze(value) for value in values}.isdisjoint(freeze(value) for value in others)
    types, their_types = list_types(ours), list_types(theirs)
    if types.isdisjoint(their_types):
        return True
    return types | their_types == {"object"} and any(
        exclude(ours["properties"][name], theirs["properties"][name], resolve)
        for name in demanded(ours) & demanded(theirs)
    )


def list_values(schema: dict[str, Any]) -> list[Any] | None:
    """All that it allows, if it names them."""
    if "const" in schema:
        return [schema["const"]]
    return schema["enum"] if isinstance(schema.get("enum"), list) else None


def list_types(schema: dict[str, Any]) -> set[str]:
    """Of everything that might fit: a whole number is a number, and without a type anything may."""
    if (values := list_values(schema)) is not None:
        return {OF_VALUES.get(type(value), "object") for value in values}
    given = schema.get("type", list(TYPES))
    return {"number" if name == "integer" else str(name) for name in (given if isinstance(given, list) else [given])}


def demanded(schema: dict[str, Any]) -> set[str]:
    """Properties that it both requires and describes."""
    required, described = schema.get("required"), schema.get("properties")
    if not isinstance(required, list) or not isinstance(described, dict):
        return set()
    return {name for name in required if isinstance(name, str) and name in described}


def freeze(value: Any) -> Hashable:
    """Equal for equal values, 1 and 1.0; 1 and true too, which are not: rather one too many."""
    if isinstance(value, list):
        return tuple(map(freeze, value))
    if isinstance(value, dict):
        return frozenset((name, freeze(inner)) for name, inner in value.items())
    return value  # type: ignore[no-any-return]
