"""Schemas that are said to exclude each other do."""

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipaged.languages.apart import exclude

VALUES = [None, True, False, 0, 1, 1.0, 2.5, "", "a", [], [1], [True], {}, {"a": 1}, {"a": True}, {"a": 2}, {"b": "a"}]
SCHEMAS = st.recursive(
    st.fixed_dictionaries(
        {"type": st.sampled_from(["null", "boolean", "integer", "number", "string", "array", "object"])}
    )
    | st.fixed_dictionaries({"const": st.sampled_from(VALUES)})
    | st.fixed_dictionaries({"enum": st.lists(st.sampled_from(VALUES), min_size=1, max_size=3)})
    | st.sampled_from([True, {}, {"type": ["string", "null"]}, {"minimum": 3}]),
    lambda inner: st.fixed_dictionaries(
        {"properties": st.dictionaries(st.sampled_from("ab"), inner, min_size=1)},
        optional={"required": st.lists(st.sampled_from("ab"), unique=True), "type": st.just("object")},
    ),
    max_leaves=3,
)


@given(ours=SCHEMAS, theirs=SCHEMAS)
def test_no_value_fits_both(ours, theirs):
    if exclude(ours, theirs, lambda schema: schema):
        for value in VALUES:
            fits = [jsonschema.Draft202012Validator(one).is_valid(value) for one in (ours, theirs)]
            assert fits != [True, True], (ours, theirs, value)


def kind(name):
    return {"type": "object", "properties": {"kind": {"const": name}}, "required": ["kind"]}


@pytest.mark.parametrize(
    ("ours", "theirs", "apart"),
    [
        ({"type": "string"}, {"type": "null"}, True),
        ({"type": "integer"}, {"type": "number"}, False),
        ({"type": ["string", "null"]}, {"type": ["null", "array"]}, False),
        ({"const": 1}, {"const": 1.0}, False),
        ({"const": "a"}, {"enum": ["b", 1]}, True),
        ({"const": "a"}, {"type": "number"}, True),
        ({"enum": [1, "a"]}, {"type": "string"}, False),
        (kind("cat"), kind("dog"), True),
        (kind("cat"), kind("cat"), False),
        (kind("cat"), {**kind("dog"), "required": []}, False),
        (kind("cat"), {"type": "string"}, True),
        ({"minimum": 3}, {"type": "string"}, False),
        (True, {"type": "string"}, False),
    ],
)
def test_what_is_plain_to_see_is_seen(ours, theirs, apart):
    assert exclude(ours, theirs, lambda schema: schema) == apart
    assert exclude(theirs, ours, lambda schema: schema) == apart
