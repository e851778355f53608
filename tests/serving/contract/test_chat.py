"""POST /v1/chat/completions: a conversation in, a message out."""

import json
from typing import Any

import httpx
import pytest

from .asking import CHAT, USER, chat, events, is_refused, ok

SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["Ada", "Bo"]}, "old": {"type": "boolean"}},
    "required": ["name", "old"],
}


def test_the_shape_of_an_answer(http: httpx.Client) -> None:
    answer = ok(chat(http))
    assert answer["object"] == "chat.completion"
    assert answer["id"].startswith("chatcmpl-")
    [choice] = answer["choices"]
    assert choice["message"]["role"] == "assistant"
    assert isinstance(choice["message"]["content"], str)
    assert choice["finish_reason"] in ("stop", "length")
    assert answer["usage"]["completion_tokens"] <= 8


def test_a_stream_begins_with_the_role_and_joins_to_the_whole(http: httpx.Client) -> None:
    whole = ok(chat(http, max_tokens=24))["choices"][0]
    chunks = events(chat(http, max_tokens=24, stream=True))
    assert all(chunk["object"] == "chat.completion.chunk" for chunk in chunks)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert not any("role" in delta for delta in deltas[1:])
    assert "".join(delta.get("content") or "" for delta in deltas) == whole["message"]["content"]
    assert [c["choices"][0]["finish_reason"] for c in chunks if c["choices"][0]["finish_reason"]] == [
        whole["finish_reason"]
    ]
    assert chunks[-1]["choices"][0]["finish_reason"] == whole["finish_reason"]


@pytest.mark.parametrize("options", [None, {}, {"include_usage": True}])
def test_usage_is_streamed_once_if_asked_for(http: httpx.Client, options: dict[str, Any] | None) -> None:
    chunks = events(chat(http, stream=True, stream_options=options))
    with_usage = [chunk for chunk in chunks if chunk.get("usage")]
    assert len(with_usage) == bool(options)
    assert with_usage == ([chunks[-1]] if options else [])
    assert all(chunk["choices"] == [] for chunk in with_usage)


def test_each_choice_of_a_stream_has_a_role_and_an_end(http: httpx.Client) -> None:
    chunks = [chunk["choices"][0] for chunk in events(chat(http, stream=True, n=3))]
    assert sorted(choice["index"] for choice in chunks if "role" in choice["delta"]) == [0, 1, 2]
    assert sorted(choice["index"] for choice in chunks if choice["finish_reason"]) == [0, 1, 2]


def test_messages_may_come_in_parts(http: httpx.Client) -> None:
    parts = [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
    assert ok(chat(http, messages=parts))["choices"][0]["message"] == ok(chat(http))["choices"][0]["message"]


def test_a_conversation_has_a_past(http: httpx.Client) -> None:
    past = [{"role": "system", "content": "Be brief."}, *USER, {"role": "assistant", "content": "Ho"}, *USER]
    answers = [ok(chat(http, messages=messages))["usage"]["prompt_tokens"] for messages in (USER, past)]
    assert answers[1] > answers[0]


@pytest.mark.parametrize(("limits", "expected"), [
    ({"max_completion_tokens": 3, "max_tokens": None}, 3),
    ({"max_completion_tokens": 3, "max_tokens": 9}, 3),
    ({"max_tokens": 5}, 5),
])  # fmt: skip
def test_max_completion_tokens_goes_before_max_tokens(http: httpx.Client, limits: Any, expected: int) -> None:
    assert ok(chat(http, ignore_eos=True, **limits))["usage"]["completion_tokens"] == expected


def test_without_a_limit_an_answer_goes_on_to_the_models_end(http: httpx.Client, ours: None) -> None:
    answer = ok(http.post(CHAT, json={"messages": USER, "temperature": 0, "ignore_eos": True}))
    assert answer["usage"]["total_tokens"] == 256
    assert answer["choices"][0]["finish_reason"] == "length"


def test_logprobs(http: httpx.Client) -> None:
    choice = ok(chat(http, logprobs=True, top_logprobs=2, max_tokens=4, ignore_eos=True))["choices"][0]
    content = choice["logprobs"]["content"]
    assert len(content) == 4
    for token in content:
        assert len(token["top_logprobs"]) == 2
        assert token["logprob"] == token["top_logprobs"][0]["logprob"] <= 0
        assert token["bytes"] is None or bytes(token["bytes"]).decode() == token["token"]
    plain = ok(chat(http, logprobs=True, max_tokens=4, ignore_eos=True))["choices"][0]["logprobs"]["content"]
    assert [token["top_logprobs"] for token in plain] == [[]] * 4
    streamed = events(chat(http, logprobs=True, max_tokens=4, ignore_eos=True, stream=True))
    joined = [token for chunk in streamed for token in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]]
    assert [token["token"] for token in joined] == [token["token"] for token in plain]


def test_a_schema_is_kept_to(http: httpx.Client) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}}
    for temperature in (0, 1):
        answer = ok(chat(http, response_format=wanted, max_tokens=60, temperature=temperature))
        said = json.loads(answer["choices"][0]["message"]["content"])
        assert said["name"] in ("Ada", "Bo")
        assert isinstance(said["old"], bool)


def test_a_json_object_begins_as_one(http: httpx.Client) -> None:
    content = ok(chat(http, response_format={"type": "json_object"}))["choices"][0]["message"]["content"]
    assert content.startswith("{")


@pytest.mark.parametrize(("wanted", "fits"), [
    ({"choice": ["yes", "no"]}, lambda text: text in ("yes", "no")),
    ({"regex": "[0-9]{3}"}, lambda text: len(text) == 3 and text.isdecimal()),
    ({"json": SCHEMA}, lambda text: json.loads(text)["name"] in ("Ada", "Bo")),
    ({"grammar": 'root ::= "ab"'}, lambda text: text == "ab"),
])  # fmt: skip
def test_structured_outputs_as_vllm_has_them(http: httpx.Client, ours: None, wanted: Any, fits: Any) -> None:
    answer = ok(chat(http, structured_outputs=wanted, max_tokens=60))
    assert fits(answer["choices"][0]["message"]["content"]), answer
    assert answer["choices"][0]["finish_reason"] == "stop"


def test_text_is_the_format_that_asks_for_nothing(http: httpx.Client) -> None:
    assert ok(chat(http, response_format={"type": "text"}))["choices"] == ok(chat(http))["choices"]


@pytest.mark.parametrize("body", [
    {"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]},
    {"tool_choice": "required"},
    {"functions": [{"name": "f"}]},
    {"messages": [*USER, {"role": "tool", "content": "3", "tool_call_id": "x"}]},
    {"messages": [*USER, {"role": "assistant", "content": None, "tool_calls": [{"id": "x"}]}]},
])  # fmt: skip
def test_tool_calls_are_refused_by_name(http: httpx.Client, ours: None, body: Any) -> None:
    assert "tool calls" in is_refused(chat(http, **body), 400)["message"]


def test_pictures_are_refused(http: httpx.Client, ours: None) -> None:
    picture = [{"type": "text", "text": "Hi"}, {"type": "image_url", "image_url": {"url": "data:,"}}]
    error = is_refused(chat(http, messages=[{"role": "user", "content": picture}]), 400, "messages")
    assert "messages[0].content[1]" in error["message"]
