"""A stream is read to its end, and one that was cut is not taken for one that ended."""

import pytest

from minipaged.sse import StreamReader, delta


def test_events_are_objects_and_everything_else_is_passed_over() -> None:
    reader = StreamReader()
    lines = ['data: {"a": 1}', "", ": a comment", "event: x", 'data:{"b": 2}', "data: [DONE]"]
    assert [event for line in lines if (event := reader.read(line))] == [{"a": 1}, {"b": 2}]
    reader.check_end()


def test_an_error_event_is_raised_in_the_servers_words() -> None:
    with pytest.raises(RuntimeError, match="the engine has died"):
        StreamReader().read('data: {"error": {"message": "the engine has died"}}')


def test_a_stream_without_an_end_was_cut() -> None:
    reader = StreamReader()
    reader.read('data: {"a": 1}')
    with pytest.raises(RuntimeError, match="cut"):
        reader.check_end()


@pytest.mark.parametrize(("event", "text"), [
    ({"choices": [{"delta": {"content": "Hi"}}]}, "Hi"), ({"choices": [{"text": "Hi"}]}, "Hi"),
    ({"choices": [{"delta": {"role": "assistant", "content": ""}}]}, ""), ({"choices": [{"delta": {}}]}, ""),
    ({"choices": [], "usage": {}}, ""), ({"choices": [{"delta": {"content": None}}]}, ""),
    ({"choices": [{"delta": None}]}, ""), ({"choices": ["Hi"]}, ""), ({"choices": "Hi"}, ""),
    ({"choices": [{"text": 5}]}, ""),
])  # fmt: skip
def test_the_text_of_a_chunk(event: dict[str, object], text: str) -> None:
    assert delta(event) == text


@pytest.mark.parametrize("line", ["data: {", "data: 5", "data: []", "data: null", "data: " + "[" * 100_000])
def test_what_is_no_event_is_an_error_of_the_servers(line: str) -> None:
    with pytest.raises(RuntimeError, match="no JSON object"):
        StreamReader().read(line)


def test_an_error_in_any_shape_is_one() -> None:
    with pytest.raises(RuntimeError, match="full"):
        StreamReader().read('data: {"error": "full"}')
