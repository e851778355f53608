"""What an answer must look like, in OpenAI's words and in vLLM's; what takes too long to read is not read."""

from typing import Any

import pytest

from minipaged.serving.structure import MAX_CHARACTERS, MAX_DEPTH, check_plain, check_size, from_response_format


@pytest.mark.parametrize(("wanted", "expected"), [
    (None, None), ({"type": "text"}, None), ({"type": "json_object"}, {"json": {"type": "object"}}),
    ({"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "string"}}}, {"json": {"type": "string"}}),
])  # fmt: skip
def test_the_words_of_openai(wanted: Any, expected: Any) -> None:
    assert from_response_format(wanted) == expected


@pytest.mark.parametrize("wanted", [{}, {"type": "x"}, {"type": "json_schema"}, {"type": 5}, {"type": ["text"]}])
def test_words_that_openai_does_not_have(wanted: Any) -> None:
    with pytest.raises(ValueError, match="response_format"):
        from_response_format(wanted)


def nested(depth: int) -> dict[str, Any]:
    inner: dict[str, Any] = {}
    for _ in range(depth - 1):
        inner = {"a": inner}
    return inner


def test_depth_has_a_limit_in_text_too() -> None:
    check_size(None)
    check_size({"json": nested(MAX_DEPTH - 1)})
    for structure in (
        {"json": nested(MAX_DEPTH)},
        {"regex": "(" * (MAX_DEPTH + 1)},
        {"json": '{"a":' * MAX_DEPTH + "1"},
    ):
        with pytest.raises(ValueError, match="nested"):
            check_size(structure)


def test_size_has_a_limit() -> None:
    with pytest.raises(ValueError, match=str(MAX_CHARACTERS)):
        check_size({"choice": ["x" * MAX_CHARACTERS]})


@pytest.mark.parametrize("value", ["\ud800", {"a": "\udfff"}, {"\ud800": 1}, {"a": float("nan")}, ["a", ["\ud800"]]])
def test_what_could_not_be_written_down_again_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"surrogate|JSON"):
        check_plain(value)
