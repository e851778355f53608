"""Words for asking: one request, its answer, its events."""

import json
from typing import Any

import httpx

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
PROMPT = "The capital of France is"
GREEDY = {"temperature": 0, "max_tokens": 8}
USER = [{"role": "user", "content": "Hi"}]


def complete(http: httpx.Client, **body: Any) -> httpx.Response:
    return http.post(COMPLETIONS, json={"prompt": PROMPT, **GREEDY, **body})


def chat(http: httpx.Client, **body: Any) -> httpx.Response:
    return http.post(CHAT, json={"messages": USER, **GREEDY, **body})


def ok(response: httpx.Response) -> Any:
    assert response.status_code == 200, response.text
    return response.json()


def events(response: httpx.Response) -> list[Any]:
    """The objects of a stream that came to its proper end."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = [line for line in response.text.split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines), lines
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def is_refused(response: httpx.Response, status: int, param: str | None = None) -> dict[str, Any]:
    """With OpenAI's error body; a param that is None is not looked at."""
    assert response.status_code == status, (response.status_code, response.text)
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}, error
    assert isinstance(error["message"], str)
    assert error["message"]
    if param is not None:
        assert error["param"] == param, error
    return error
