"""Whatever fits the OpenAPI document, and whatever just does not, gets an answer that is no 5xx."""

from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode

from .running import Running

NUM_EXAMPLES = 10
STREAMS_FOR_EVER = "/observatory/events"
QUICK = settings(
    max_examples=NUM_EXAMPLES, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)


def operations(url: str) -> list[Any]:
    schema = schemathesis.openapi.from_url(url + "/openapi.json")
    found = [result.ok() for result in schema.get_all_operations()]
    return [operation for operation in found if operation.path != STREAMS_FOR_EVER]


def test_the_document_names_every_route(served: Running) -> None:
    paths = httpx.get(served.url + "/openapi.json").json()["paths"]
    assert {"/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"} < paths.keys()
    fields = httpx.get(served.url + "/openapi.json").json()["components"]["schemas"]["CompletionRequest"]["properties"]
    assert {"prompt", "max_tokens", "structured_outputs", "cache_salt"} < fields.keys()


def tame(body: Any) -> Any:
    """Long answers are asked for elsewhere."""
    limits = {"n": 3, "max_tokens": 2, "max_completion_tokens": 2}
    if isinstance(body, dict):
        for name, most in limits.items():
            if type(value := body.get(name, most)) is int:
                body[name] = min(value, most)
    return body


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_no_request_breaks_the_server(served: Running, mode: GenerationMode) -> None:
    for operation in operations(served.url):
        if mode == GenerationMode.NEGATIVE and not operation.body:
            continue  # whatever is asked of it is right
        QUICK(given(case=operation.as_strategy(generation_mode=mode))(never_a_5xx))(url=served.url)
    assert httpx.get(served.url + "/health").status_code == 200


def never_a_5xx(case: Any, url: str) -> None:
    case.body = tame(case.body)
    answer = case.call(base_url=url, timeout=20)
    assert answer.status_code < 500, (case.method, case.path, case.body, answer.text)
