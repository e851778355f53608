"""Whatever is said under a schema is JSON, and fits it; what could not be promised is refused, by keyword and place."""

import json
from datetime import datetime, time
from random import Random

import jsonschema
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from minipaged.languages.schema import to_ebnf
from minipaged.structured import read

from .saying import allows, compile_grammar, read_or_reject, say

TYPES = ["object", "array", "string", "number", "integer", "boolean", "null"]
NAMES = st.sampled_from(["a", "b", "ü", 'q"', "c/d", "e~f"])
COUNT, BOUND = st.integers(0, 4), st.integers(-20, 20) | st.sampled_from([0.5, -2.25, 99.9, 1e9])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(-2, 2) | st.text('ab"\\é\n', max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=2),
    max_leaves=3,
)
SCALARS = {
    "title": st.just("t"),
    "minLength": COUNT,
    "maxLength": COUNT,
    "pattern": st.sampled_from(["^a+$", "[^b]{2}", ".", r"\w-\d", "^(ab|c)?$", "a{3}", '"', r"\s"]),
    "format": st.sampled_from(["date", "time", "date-time", "uuid", "ipv4", "email", "uri"]),
    "minimum": BOUND,
    "maximum": BOUND,
    "exclusiveMinimum": BOUND,
    "exclusiveMaximum": BOUND,
    "multipleOf": st.sampled_from([1, 3, 5.0, 0.1]),
    "uniqueItems": st.booleans(),
    "minItems": COUNT,
    "maxItems": COUNT,
    "required": st.lists(NAMES, max_size=2),
    "minProperties": COUNT,
    "maxProperties": COUNT,
    "const": VALUES,
    "enum": st.lists(VALUES, min_size=1, max_size=3),
    "$ref": st.sampled_from(["#", "#/$defs/a", "#/properties/b"]),
}


def nest(inner):
    deep = {
        "properties": st.dictionaries(NAMES, inner, min_size=1, max_size=3),
        "additionalProperties": inner | st.booleans(),
        "items": inner,
        "prefixItems": st.lists(inner, min_size=1, max_size=2),
        "anyOf": st.lists(inner, min_size=1, max_size=2),
        "oneOf": st.lists(inner, min_size=2, max_size=2),
        "allOf": st.lists(inner, min_size=1, max_size=2),
        "not": inner,
    }
    alone = st.sampled_from(["anyOf", "oneOf", "allOf", "const", "enum", "properties", "items", "prefixItems"])
    return schemas(deep | SCALARS) | alone.flatmap(lambda name: (deep | SCALARS)[name].map(lambda value: {name: value}))


@st.composite
def schemas(draw, keywords):
    """A few keywords, often one type, so that it is not always refused."""
    kinds = draw(st.sampled_from([*TYPES, *TYPES, None, ["string", "null"]]))
    chosen = draw(st.lists(st.sampled_from(sorted(keywords)), max_size=3, unique=True))
    return ({} if kinds is None else {"type": kinds}) | {name: draw(keywords[name]) for name in chosen}


SCHEMAS = st.recursive(schemas(SCALARS), nest, max_leaves=5)
CHECKER = jsonschema.FormatChecker(formats=["date", "ipv4", "email", "uuid"])
CHECKER.checks("time", ValueError)(lambda x: not isinstance(x, str) or time.fromisoformat(x) is not None)
CHECKER.checks("date-time", ValueError)(lambda x: not isinstance(x, str) or datetime.fromisoformat(x) is not None)


@settings(max_examples=100)
@given(schema=SCHEMAS, seed=st.integers(0, 2**32))
def test_what_is_said_fits_the_schema(schema, seed):
    schema["$defs"] = {"a": {"type": "integer", "maximum": 9}}
    compiled, rng = read_or_reject({"json": schema}), Random(seed)
    for _ in range(3):
        text = say(compiled, rng)
        assume(text is not None)
        jsonschema.Draft202012Validator(schema, format_checker=CHECKER).validate(json.loads(text))


SHELF = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 6},
        "size": {"type": "number", "exclusiveMinimum": 0, "maximum": 2.5},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 1, "maxItems": 3},
        "made": {"type": "string", "format": "date"},
        "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}], "default": None},
    },
    "required": ["name", "next"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("schema", "fitting", "others"),
    [
        (
            SHELF,
            ['{"name": "x", "next": null}', '{"name": "x", "size": 0.5, "next": {"name": "y", "next": null}}'],
            ['{"name": "", "next": null}', '{"name": "x"}'],
        ),
        (
            SHELF,
            ['{"name": "x", "tags": ["a", "b"], "made": "2024-02-28", "next": null}'],
            ['{"name": "x", "tags": [], "next": null}', '{"name": "x", "size": 0, "next": null}'],
        ),
        (
            {"type": "object", "properties": {"a": {}, "b": {}}},
            ["{}", '{"b": 1}', '{"a": [], "b": {}}'],
            ['{"c": 1}', '{"b": 1, "a": 1}'],
        ),
        ({"type": "object"}, ["{}", '{"x": [1, {"y": null}]}'], ["[]", '{"x":1}']),
        (
            {"additionalProperties": {"type": "null"}, "minProperties": 1, "maxProperties": 2},
            ['{"x": null}', '{"x": null, "y": null}'],
            ["{}", '{"x": 1}', '{"x": null, "y": null, "z": null}'],
        ),
        ({"type": "object", "additionalProperties": False}, ["{}"], ['{"a": 1}']),
        ({"required": ["z"]}, ['{"z": 3}'], ["{}", "3"]),
        ({"prefixItems": [{"const": 1}, {"const": 2}]}, ["[1, 2]"], ["[1]", "[1, 2, 3]"]),
        (
            {"prefixItems": [{"const": 1}], "items": {"const": 2}, "minItems": 2, "maxItems": 3},
            ["[1, 2]", "[1, 2, 2]"],
            ["[1]", "[1, 2, 2, 2]"],
        ),
        ({"prefixItems": [{"const": 1}, {"const": 2}], "maxItems": 1}, ["[1]"], ["[]", "[1, 2]"]),
        ({"items": False}, ["[]"], ["[1]"]),
        ({"type": "string", "maxLength": 2}, ['""', '"ab"', '"é叫"'], ['"abc"', '"\t"', '"\\n"']),
        ({"type": "string"}, ['"a\\n\\"é"'], ['"\x01"', '"\\ud800"', '"\n"']),
        (
            {"type": ["integer", "null"], "minimum": -1, "maximum": 12},
            ["-1", "0", "12", "null"],
            ["-2", "13", "1.0", "-0", "01"],
        ),
        ({"type": "number"}, ["0", "-1.5", "2e-7", "3.25E+10"], ["1e999", ".5", "+1", "01"]),
        ({"multipleOf": 5, "minimum": 1, "maximum": 16}, ["5", "10", "15"], ["0", "1", "20", "7.5"]),
        ({"type": "string", "enum": ["a", 1, None]}, ['"a"'], ["1", "null"]),
        ({"enum": ["\n", {"b": [True, 1.5]}]}, ['"\\n"', '{"b": [true, 1.5]}'], ['{"b":[true,1.5]}']),
        (
            {"oneOf": [{"type": "string"}, {"$ref": "#/$defs/n"}], "$defs": {"n": {"type": "null"}}},
            ['"a"', "null"],
            ["1"],
        ),
        ({"allOf": [{"type": "null"}], "description": "nothing"}, ["null"], ["1"]),
        ({"type": "boolean", "maxLength": 3}, ["true", "false"], ["1"]),
        (json.dumps({"const": 3}), ["3"], ["4"]),
        ("true", ["3", "[]", '{"a": 1}'], [""]),
    ],
)
def test_what_may_be_said_and_what_not(schema, fitting, others):
    compiled = compile_grammar({"json": schema})
    assert [text for text in fitting if not allows(compiled, text)] == []
    assert [text for text in others if allows(compiled, text)] == []


def inside(schema):
    return {"type": "object", "properties": {"x": {"type": "array", "items": schema}}}


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        ({"uniqueItems": True, "type": "array"}, "uniqueItems"),
        ({"type": "number", "multipleOf": 0.1}, "multipleOf"),
        ({"type": "integer", "multipleOf": 7}, "multipleOf"),
        ({"not": {"type": "null"}}, "not"),
        ({"allOf": [{"minimum": 1}, {"maximum": 3}]}, "allOf"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf"),
        ({"oneOf": [{"minimum": 3}, {"type": "string"}]}, "oneOf"),
        ({"type": "string", "pattern": "^a+$", "maxLength": 3}, "pattern"),
        ({"type": "string", "pattern": "a$b"}, "pattern"),
        ({"type": "string", "pattern": "a", "format": "date"}, "format"),
        ({"type": "string", "format": "uri"}, "format"),
        ({"contains": {"type": "null"}}, "contains"),
        ({"if": {}, "then": {}}, "if"),
        ({"dependentRequired": {"a": ["b"]}}, "dependentRequired"),
        ({"dependentSchemas": {"a": {}}}, "dependentSchemas"),
        ({"dependencies": {"a": ["b"]}}, "dependencies"),
        ({"propertyNames": {"maxLength": 3}}, "propertyNames"),
        ({"patternProperties": {"^a": {}}}, "patternProperties"),
        ({"unevaluatedProperties": False}, "unevaluatedProperties"),
        ({"items": [{}, {}]}, "items"),
        ({"additionalItems": {}}, "additionalItems"),
        ({"maxlength": 3}, "maxlength"),
        ({"nullable": True, "type": "string"}, "nullable"),
        ({"$dynamicRef": "#a"}, "$dynamicRef"),
        ({"type": "string", "const": 3}, "const"),
        ({"type": "string", "enum": [1, None]}, "enum"),
        ({"enum": ["a"], "minLength": 3}, "enum"),
        ({"type": "string", "anyOf": [{"type": "null"}]}, "anyOf"),
        ({"anyOf": [{"required": ["a"]}], "properties": {"a": {}}}, "anyOf"),
        ({"$ref": "#", "minimum": 3}, "$ref"),
        ({"$ref": "https://example.org/schema"}, "$ref"),
        ({"$ref": "#/$defs/none"}, "$ref"),
        ({"required": ["b"], "properties": {"a": {}}, "additionalProperties": False}, "required"),
        ({"minProperties": 2}, "minProperties"),
        ({"minProperties": 2, "properties": {"a": {}, "b": {}}}, "minProperties"),
        ({"maxProperties": 1, "properties": {"a": {}, "b": {}}}, "maxProperties"),
        ({"minLength": 3, "maxLength": 2}, "minLength"),
        ({"minItems": 3, "items": False}, "minItems"),
        ({"minLength": -1}, "minLength"),
        ({"maxItems": 1.5}, "maxItems"),
        ({"minItems": 10**9}, "minItems"),
        ({"minimum": True}, "minimum"),
        ({"type": "integer", "minimum": 0.1, "maximum": 0.9}, "minimum"),
        ({"exclusiveMinimum": 3, "maximum": 3}, "exclusiveMinimum"),
        ({"type": "float"}, "type"),
        ({"type": []}, "type"),
        ({"enum": []}, "enum"),
        ({"enum": "a"}, "enum"),
        ({"anyOf": []}, "anyOf"),
        ({"properties": []}, "properties"),
        ({"required": "a"}, "required"),
        ({"properties": {"a": {}}, "additionalProperties": "a"}, "additionalProperties"),
    ],
)
def test_what_cannot_be_kept_is_refused_with_keyword_and_place(schema, keyword):
    with pytest.raises(ValueError) as refused:
        to_ebnf(inside(schema))
    assert str(refused.value).startswith(f"{keyword} at #/properties/x/items "), refused.value


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (inside("x"), "#/properties/x/items must be a schema, not 'x'"),
        ({"properties": {"x": False}}, "#/properties/x allows nothing"),
        ({"properties": {"a/b": {"properties": {"~": {"not": {}}}}}}, "not at #/properties/a~1b/properties/~0 is not"),
        ({"$ref": "#"}, "no text ever completes #$"),
        ({"properties": {"x": {"$ref": "#"}}, "required": ["x"]}, "no text ever completes #"),
        (
            {
                "properties": {"x": {"$ref": "#/$defs/a"}},
                "$defs": {"a": {"items": {"$ref": "#/$defs/a"}, "minItems": 1}},
            },
            "completes #/properties/x, #/.defs/a",
        ),
        ("{", "Expecting property name"),
        ("false", "# allows nothing"),
        ('{"minimum": NaN}', "minimum at # must be a number"),
        ({"minimum": float("inf")}, "minimum at # must be a number"),
        ({"const": "a \ud800"}, r"# cannot be said: '\"a .ud800\"' holds a lone surrogate"),
        ({"properties": {"a \ud800": {}}}, "# cannot be said: .* holds a lone surrogate"),
        ({"properties": {"x": {"enum": [[float("nan")]]}}}, "#/properties/x cannot be said: Out of range float"),
        ('{"const": 1e400}', "# cannot be said: Out of range float"),
        *[({"anyOf": [{}, {"$ref": f"#/anyOf/{i}"}]}, "where nothing is") for i in ("-2", "+0", "00", "0_0", "٠", "2")],
        ({"type": {1}}, "not JSON serializable"),
        pytest.param('{"items": ' * 5000 + "true" + "}" * 5000, "nested too deeply", id="deep"),
    ],
)
def test_what_is_no_schema_is_refused_with_the_reason(schema, reason):
    with pytest.raises(ValueError, match=f"this json is not understood: .*{reason}"):
        read({"json": schema})


def test_many_branches_cost_no_more_than_they_should():
    with pytest.raises(ValueError, match="oneOf at # is not supported for more than 200"):
        to_ebnf({"oneOf": [{"const": i} for i in range(10_000)]})
    read({"json": {"oneOf": [{"const": i} for i in range(200)]}})
    read({"json": {"enum": list(range(20_000))}})
