"""What is refused, with which status, in whose words; and that whoever comes next is served."""

import json
from typing import Any

import httpx
import pytest

from .asking import CHAT, COMPLETIONS, PROMPT, USER, chat, complete, is_refused, ok

BIG = 10_000_000


@pytest.fixture(autouse=True)
def alive(http: httpx.Client) -> Any:
    """After each refusal the server answers as before."""
    yield
    ok(complete(http, max_tokens=1))


@pytest.mark.parametrize("value", [0, -1, 1.5, "5", True, [], 10**30])
def test_a_number_of_tokens_that_is_none(http: httpx.Client, value: object) -> None:
    for ask in (complete, chat):
        is_refused(ask(http, max_tokens=value), 400)
        is_refused(ask(http, max_completion_tokens=value), 400)


@pytest.mark.parametrize("value", [BIG, 0, -1, 129, 1.0, "2"])
def test_more_choices_than_there_are(http: httpx.Client, value: object) -> None:
    is_refused(complete(http, n=value), 400, "n")
    is_refused(chat(http, n=value), 400, "n")


@pytest.mark.parametrize("prompt", ["", [""], [], [[]], ["a", ""], [[1], []], None, 5, {}, ["a", 1], [1.5], [[["a"]]]])
def test_a_prompt_that_is_none(http: httpx.Client, prompt: object) -> None:
    is_refused(complete(http, prompt=prompt), 400, "prompt")


def test_a_million_wrong_biases_are_one(http: httpx.Client, ours: None) -> None:
    is_refused(complete(http, logit_bias={str(i): "x" for i in range(50_000)}), 400, "logit_bias")


def test_more_than_can_be_read_while_others_wait(http: httpx.Client, ours: None) -> None:
    """A body has room for a million of each; some are counted, and nothing of them is read."""
    for number, field, ask in ((4097, "prompt", complete), (1_000_000, None, complete), (10_001, "messages", chat)):
        for one in ({"role": "user", "content": "a"},) if ask is chat else ("a", [1]):  # a million: of no single field
            many = {"messages" if ask is chat else "prompt": [one] * number}
            assert "at most" in is_refused(ask(http, **many), 400, field)["message"]
    is_refused(complete(http, logit_bias={str(i): 1 for i in range(270_000)}), 400, "logit_bias")


def test_a_refusal_names_what_would_be_right(http: httpx.Client, ours: None) -> None:
    asked = [
        (complete(http, logprobs=21), "logprobs must be a whole number in [0, 20], not 21"),
        (chat(http, logprobs=21), "logprobs must be true or false, not 21"),
        (http.post("/tokenize", json={"prompt": 5}), "prompt must be text, not 5"),
    ]
    assert [answer.json()["error"]["message"] for answer, _ in asked] == [said for _, said in asked]


def test_no_prompt_and_no_messages(http: httpx.Client) -> None:
    is_refused(http.post(COMPLETIONS, json={"max_tokens": 1}), 400, "prompt")
    is_refused(http.post(CHAT, json={"max_tokens": 1}), 400, "messages")


@pytest.mark.parametrize("prompt", [[BIG], [-1], [[-1]], [[1], [BIG]], [2**63], [-(2**70)]])
def test_tokens_that_there_are_not(http: httpx.Client, prompt: object) -> None:
    is_refused(complete(http, prompt=prompt), 400, "prompt")


@pytest.mark.parametrize("messages", [
    [], "Hi", [5], [[]], [{}], [{"role": "user"}], [{"content": "Hi"}], [{"role": "user", "content": 5}],
    [{"role": 1, "content": "Hi"}], [{"role": "user", "content": None}],
    [{"role": "user", "content": [{"type": "text"}]}], [{"role": "user", "content": ["Hi"]}],
    [{"role": "king", "content": "Hi"}], [{"role": "assistant", "content": None}, {"role": "user", "content": "Hi"}],
    [{"role": "user", "content": [{"type": "text", "text": None}]}],
])  # fmt: skip
def test_messages_that_are_none(http: httpx.Client, messages: object) -> None:
    is_refused(chat(http, messages=messages), 400, "messages")


@pytest.mark.parametrize(("name", "value"), [
    ("temperature", -0.1), ("temperature", "hot"), ("temperature", True), ("top_p", 0), ("top_p", 1.1), ("top_k", -2),
    ("top_k", 1.5), ("min_p", 2), ("presence_penalty", 2.1), ("frequency_penalty", -2.1), ("repetition_penalty", 0),
    ("seed", 2**64), ("seed", "x"), ("stop", list("abcde")), ("stop", ""), ("stop", ["a", ""]), ("stop", 5),
    ("stop", [5]), ("logit_bias", {"9999999": 1}), ("logit_bias", {"-1": 1}), ("logit_bias", {"x": 1}),
    ("logit_bias", {"1": "x"}), ("logit_bias", []), ("stop_token_ids", [BIG]), ("stop_token_ids", 5),
    ("allowed_token_ids", []), ("allowed_token_ids", [-1]), ("min_tokens", 99), ("min_tokens", -1), ("stream", "yes"),
    ("ignore_eos", 1), ("priority", "high"), ("priority", 2**70), ("cache_salt", ""), ("cache_salt", 5), ("user", 5),
    ("model", 5), ("stream_options", "x"), ("stream_options", {"include_usage": "x"}), ("response_format", "json"),
    ("structured_outputs", {}), ("structured_outputs", {"json": {}, "regex": "a"}), ("structured_outputs", "x"),
    ("structured_outputs", {"choice": []}), ("structured_outputs", {"regex": "((("}),
])  # fmt: skip
def test_a_field_out_of_range_is_named(http: httpx.Client, ours: None, name: str, value: object) -> None:
    for ask in (complete, chat):
        empty = value == {}
        if not empty:  # an empty object asks for nothing
            error = is_refused(ask(http, **{name: value}), 400, name)
            assert name in error["message"]


@pytest.mark.parametrize(("ask", "body"), [
    (complete, {"logprobs": 21}), (complete, {"logprobs": -1}), (complete, {"logprobs": True}),
    (complete, {"echo": "yes"}), (complete, {"best_of": 2}), (complete, {"suffix": "x"}),
    (complete, {"stream_options": {"include_usage": True}}),
    (chat, {"logprobs": 1}), (chat, {"logprobs": True, "top_logprobs": 21}), (chat, {"top_logprobs": 2}),
])  # fmt: skip
def test_limits_of_one_api(http: httpx.Client, ours: None, ask: Any, body: Any) -> None:
    is_refused(ask(http, **body), 400)


@pytest.mark.parametrize("wanted", [
    {"type": "nonsense"}, {}, {"type": "json_schema"}, {"type": "json_schema", "json_schema": {"name": "x"}},
    {"type": "json_schema", "json_schema": {"name": "x", "schema": "bar"}},
    {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object", "properties": {"foo": "bar"}}}},
])  # fmt: skip
def test_a_format_that_is_none(http: httpx.Client, wanted: Any) -> None:
    for ask in (complete, chat):
        is_refused(ask(http, response_format=wanted), 400)


def test_the_field_that_is_named_is_the_clients(http: httpx.Client, ours: None) -> None:
    """Whatever the engine calls it."""
    broken = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nonsense"}}}
    for ask, prompt in ((complete, "prompt"), (chat, "messages")):
        for name in ("max_tokens", "max_completion_tokens"):
            for value in (0, 10**6):
                assert name in is_refused(ask(http, **{name: value}), 400, name)["message"]
        assert "response_format" in is_refused(ask(http, response_format=broken), 400, "response_format")["message"]
        long = {"prompt": "x" * 300} if ask is complete else {"messages": [{"role": "user", "content": "x" * 300}]}
        is_refused(ask(http, max_tokens=None, **long) if ask is complete else chat(http, **long), 400, prompt)
    for tokens in ([BIG], [-1]):
        error = is_refused(http.post("/detokenize", json={"tokens": tokens}), 400, "tokens")
        assert error["message"].startswith("tokens[0]")
    assert is_refused(complete(http, prompt=[BIG]), 400, "prompt")["message"].startswith("prompt[0]")


def test_nobody_is_sent_back_megabytes_of_their_own(http: httpx.Client, ours: None) -> None:
    long = "x" * (1 << 20)
    answers = [complete(http, model=long), complete(http, structured_outputs={long: 1}), chat(http, messages=[long])]
    answers += [complete(http, logit_bias={long: 1}), chat(http, messages=[{"role": long, "content": "a"}])]
    for answer in answers:
        assert len(answer.content) < 4000


def test_a_schema_too_deep_to_read(http: httpx.Client, ours: None) -> None:
    schema: Any = {"type": "string"}
    for _ in range(300):
        schema = {"type": "object", "properties": {"a": schema}}
    for wanted in (schema, json.dumps(schema)):
        error = is_refused(complete(http, structured_outputs={"json": wanted}), 400, "structured_outputs")
        assert "nested" in error["message"]


def test_more_than_the_model_can_hold(http: httpx.Client, ours: None) -> None:
    error = is_refused(complete(http, max_tokens=256), 400)
    assert all(number in error["message"] for number in (str(len(PROMPT)), "256"))
    is_refused(complete(http, prompt="x" * 256), 400, "prompt")


def test_a_model_that_is_not_served(http: httpx.Client) -> None:
    for ask in (complete, chat):
        error = is_refused(ask(http, model="x"), 404, "model")
        assert error["code"] == "model_not_found"
    is_refused(http.get("/v1/models/x"), 404)
    is_refused(http.post("/tokenize", json={"model": "x", "prompt": "a"}), 404, "model")


@pytest.mark.parametrize(("method", "path", "status"), [
    ("GET", "/nothing/here", 404), ("POST", "/v1/nothing", 404), ("GET", COMPLETIONS, 405), ("DELETE", CHAT, 405),
])  # fmt: skip
def test_a_route_that_is_not_there(http: httpx.Client, method: str, path: str, status: int) -> None:
    is_refused(http.request(method, path), status)


@pytest.mark.parametrize("body", [
    b"", b"{", b"nonsense", b"[]", b"5", b"null", b'"text"', b'{"prompt": "\xff"}', b"\x27\xff", b"[" * 100_000,
    b'{"prompt": "Hi", "temperature": NaN}', b'{"prompt": "Hi", "max_tokens": 1e999}', b"\xff\xfe{\x00}\x00",
    b'{"prompt": "Hi", "temperature": 1' + b"0" * 5000 + b"}",
])  # fmt: skip
def test_a_body_that_is_no_json_object(http: httpx.Client, body: bytes) -> None:
    for path in (COMPLETIONS, CHAT):
        is_refused(http.post(path, content=body, headers={"Content-Type": "application/json"}), 400)


def test_a_body_of_another_type(http: httpx.Client, ours: None) -> None:
    """A page of somebody else's may send plain text anywhere without asking; JSON it may not."""
    body = json.dumps({"prompt": "Hi"})
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        error = is_refused(http.post(COMPLETIONS, content=body, headers={"Content-Type": kind}), 400)
        assert "application/json" in error["message"]


SURROGATE = "\\ud800"


@pytest.mark.parametrize("body", [
    f'{{"prompt": "{SURROGATE}"}}', f'{{"prompt": ["a", "{SURROGATE}"]}}', f'{{"prompt": "Hi", "stop": "{SURROGATE}"}}',
    f'{{"prompt": "Hi", "stop": ["{SURROGATE}"]}}', f'{{"prompt": "Hi", "cache_salt": "{SURROGATE}"}}',
    f'{{"prompt": "Hi", "structured_outputs": {{"choice": ["{SURROGATE}"]}}}}',
    f'{{"prompt": "Hi", "structured_outputs": {{"{SURROGATE}": 1}}}}', f'{{"prompt": "Hi", "user": "{SURROGATE}"}}',
    f'{{"prompt": "Hi", "logit_bias": {{"{SURROGATE}": 1}}}}', f'{{"prompt": "Hi", "response_format": "{SURROGATE}"}}',
])  # fmt: skip
def test_half_a_character(http: httpx.Client, ours: None, body: str) -> None:
    is_refused(http.post(COMPLETIONS, content=body, headers={"Content-Type": "application/json"}), 400)


def test_half_a_character_in_a_conversation(http: httpx.Client) -> None:
    for message in (f'{{"role": "user", "content": "{SURROGATE}"}}', f'{{"role": "{SURROGATE}", "content": "a"}}'):
        body = f'{{"messages": [{message}]}}'
        is_refused(http.post(CHAT, content=body, headers={"Content-Type": "application/json"}), 400)
    body = f'{{"model": "{SURROGATE}", "messages": [{{"role": "user", "content": "a"}}]}}'
    response = http.post(CHAT, content=body, headers={"Content-Type": "application/json"})
    assert response.status_code in (400, 404)


def test_half_a_character_in_a_field_that_nobody_knows(http: httpx.Client) -> None:
    body = f'{{"prompt": "Hi", "max_tokens": 1, "colour": "{SURROGATE}"}}'
    ok(http.post(COMPLETIONS, content=body, headers={"Content-Type": "application/json"}))


def test_a_body_that_is_too_large(http: httpx.Client, ours: None) -> None:
    whole = json.dumps({"prompt": "x" * (8 << 20)}).encode()
    is_refused(http.post(COMPLETIONS, content=whole, headers={"Content-Type": "application/json"}), 413)
    pieces = (whole[i : i + 65536] for i in range(0, len(whole), 65536))  # no length is told in advance
    is_refused(http.post(COMPLETIONS, content=pieces, headers={"Content-Type": "application/json"}), 413)


def test_a_request_that_is_refused_streams_nothing(http: httpx.Client) -> None:
    is_refused(complete(http, stream=True, max_tokens=0), 400)
    is_refused(chat(http, stream=True, messages=[]), 400, "messages")
    is_refused(chat(http, stream=True, model="x", messages=USER), 404, "model")
