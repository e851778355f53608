"""The routes around the two: models, health, version, metrics, text to tokens and back."""

import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from .asking import PROMPT, USER, complete, is_refused, ok
from .conftest import Address


def test_the_model_is_listed_with_the_time_of_its_creation(http: httpx.Client, address: Address) -> None:
    listed = ok(http.get("/v1/models"))
    assert listed["object"] == "list"
    [model] = [one for one in listed["data"] if one["id"] == address.model]
    assert model["object"] == "model"
    assert 0 < model["created"] <= time.time() + 1
    assert ok(http.get(f"/v1/models/{address.model}"))["id"] == address.model
    assert ok(complete(http, model=address.model))["model"] == address.model


def test_health_and_version(http: httpx.Client, ours: None) -> None:
    assert http.get("/health").status_code == 200
    assert ok(http.get("/version")) == {"version": "0.1.0"}


def test_every_answer_has_a_number(http: httpx.Client, ours: None) -> None:
    names = {http.get("/health").headers["x-request-id"] for _ in range(2)}
    answer = complete(http)
    assert answer.json()["id"] == "cmpl-" + answer.headers["x-request-id"]
    assert len(names) == 2
    assert is_refused(complete(http, n=0), 400)


def test_two_requests_that_a_client_calls_alike_are_two(http: httpx.Client) -> None:
    """Whatever name a client sends along, the server has its own for each."""
    body = {"prompt": PROMPT, "max_tokens": 60, "temperature": 0, "ignore_eos": True, "request_id": "same"}
    with ThreadPoolExecutor(2) as pool:
        asking = [
            pool.submit(http.post, "/v1/completions", json=body, headers={"X-Request-Id": "same"}) for _ in range(2)
        ]
        answers = [ok(future.result()) for future in asking]
    assert answers[0]["choices"] == answers[1]["choices"]
    assert answers[0]["id"] != answers[1]["id"]


def test_text_becomes_tokens_and_tokens_text(http: httpx.Client, ours: None) -> None:
    found = ok(http.post("/tokenize", json={"prompt": PROMPT, "return_token_strs": True}))
    assert found["count"] == len(found["tokens"]) == len(found["token_strs"]) == len(PROMPT)
    assert found["max_model_len"] == 256
    assert ok(http.post("/detokenize", json={"tokens": found["tokens"]})) == {"prompt": PROMPT}
    assert ok(http.post("/detokenize", json={"tokens": []})) == {"prompt": ""}
    chat = ok(http.post("/tokenize", json={"messages": USER}))
    assert ok(http.post("/detokenize", json={"tokens": chat["tokens"]}))["prompt"].endswith("<|im_start|>assistant")


@pytest.mark.parametrize(("path", "body"), [
    ("/tokenize", {}), ("/tokenize", {"prompt": "a", "messages": USER}), ("/tokenize", {"prompt": 5}),
    ("/tokenize", {"messages": []}), ("/detokenize", {}), ("/detokenize", {"tokens": "a"}),
    ("/detokenize", {"tokens": [-1]}), ("/detokenize", {"tokens": [10**9]}), ("/detokenize", {"tokens": [1.5]}),
])  # fmt: skip
def test_what_is_neither(http: httpx.Client, ours: None, path: str, body: object) -> None:
    is_refused(http.post(path, json=body), 400)


def test_metrics_have_the_names_of_vllm(http: httpx.Client, ours: None) -> None:
    ok(complete(http, max_tokens=4, ignore_eos=True))
    text = http.get("/metrics").text
    values = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in text.splitlines() if line[0] != "#"}
    label = '{model_name="tiny"}'
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
        assert values[f"minipaged:{name}{label}"] == 0
    for name in ("prompt_tokens", "generation_tokens", "prefix_cache_queries", "prefix_cache_hits", "num_preemptions"):
        assert values[f"minipaged:{name}_total{label}"] >= 0
    for name in ("time_to_first_token", "inter_token_latency", "e2e_request_latency"):
        assert values[f"minipaged:{name}_seconds_count{label}"] > 0
        assert values[f"minipaged:{name}_seconds_sum{label}"] > 0
    assert values['minipaged:request_success_total{finished_reason="length",model_name="tiny"}'] > 0
