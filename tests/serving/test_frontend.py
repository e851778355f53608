"""What fails is told as what it is, in the right way for as far as the answer has come."""

import asyncio
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import torch

from minipaged.detokenizer import Detokenizer
from minipaged.outputs import CompletionOutput, RequestOutput
from minipaged.serving.answers import Tale
from minipaged.serving.errors import ApiError
from minipaged.serving.frontend import answer

from .conftest import thread_llm
from .model import byte_model
from .running import Running, running
from .watching import is_empty, wait_for

LONG = {"prompt": "Once", "max_tokens": 100, "temperature": 0, "ignore_eos": True}


class BreaksAfter:
    """The model's forward, until it raises or turns to NaN."""

    def __init__(self, forward: Any, num_steps: int, *, dies: bool):
        self.forward, self.left, self.dies = forward, num_steps, dies

    def __getattr__(self, name: str) -> Any:
        return getattr(self.forward, name)

    def __call__(self, batch: Any, kv_cache: Any) -> torch.Tensor:
        self.left -= 1
        if self.left < 0 and self.dies:
            raise RuntimeError("the device is gone")
        logits: torch.Tensor = self.forward(batch, kv_cache)
        return torch.full_like(logits, torch.nan) if self.left < 0 else logits


def broken(folder: Path, num_steps: int, *, dies: bool) -> Any:
    llm = thread_llm(folder)
    worker = llm.engine.executor.worker
    worker.model = BreaksAfter(worker.model, num_steps, dies=dies)
    return llm


def stream(server: Running, **body: Any) -> tuple[int, list[str]]:
    answer = httpx.post(server.url + "/v1/completions", json={**LONG, **body, "stream": True}, timeout=30)
    return answer.status_code, [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]


def test_a_request_that_fails_before_its_first_word_is_a_500(folder: Path) -> None:
    with running(lambda: broken(folder, 0, dies=False)) as server:
        for body in (LONG, {**LONG, "stream": True}, {**LONG, "n": 2}):
            answer = httpx.post(server.url + "/v1/completions", json=body)
            assert answer.status_code == 500
            assert answer.json()["error"]["type"] == "server_error"
        assert httpx.get(server.url + "/health").status_code == 200
        wait_for(lambda: is_empty(server.llm))


def test_a_stream_that_fails_ends_with_an_error_and_no_reason_to_finish(folder: Path) -> None:
    with running(lambda: broken(folder, 5, dies=False)) as server:
        status, lines = stream(server)
        assert status == 200
        *chunks, last = [json.loads(line) for line in lines]
        assert last["error"]["type"] == "server_error"
        assert chunks
        assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks)
        wait_for(lambda: is_empty(server.llm))


def test_a_dead_engine_ends_open_streams_and_makes_the_server_ill(folder: Path) -> None:
    with running(lambda: broken(folder, 5, dies=True)) as server:
        status, lines = stream(server, n=2)
        assert status == 200
        assert json.loads(lines[-1])["error"]["code"] == "engine_dead"
        assert "[DONE]" not in lines
        assert httpx.get(server.url + "/health").status_code == 500
        for body in (LONG, {**LONG, "stream": True}):
            answer = httpx.post(server.url + "/v1/completions", json=body)
            assert (answer.status_code, answer.json()["error"]["code"]) == (500, "engine_dead")
        assert httpx.get(server.url + "/v1/models").status_code == 200
        assert server.front.gate.num_inside == 0


def test_an_error_of_ours_tells_no_internals(served: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken_render() -> bytes:
        raise RuntimeError("a secret path")

    monkeypatch.setattr(served.front.metrics, "render", broken_render)
    answer = httpx.get(served.url + "/metrics")
    assert answer.status_code == 500
    assert "secret" not in answer.text
    assert answer.json()["error"]["type"] == "server_error"


def test_ending_everybody_tells_them(served: Running) -> None:
    served.llm.pause()
    with httpx.Client(base_url=served.url, timeout=30) as client:
        request = client.build_request("POST", "/v1/completions", json={**LONG, "max_tokens": 200, "stream": True})
        served.llm.go_on()
        answer = client.send(request, stream=True)
        lines = answer.iter_lines()
        assert json.loads(next(lines).removeprefix("data: "))["choices"]
        served.front.end_all()
        rest = [line for line in lines if line]
        answer.close()
    assert json.loads(rest[-1].removeprefix("data: "))["error"]["code"] == "shutting_down"
    wait_for(lambda: is_empty(served.llm))


def test_without_a_chat_template_only_chat_is_refused(tmp_path: Path) -> None:
    plain = byte_model(tmp_path, chat=None)
    with running(lambda: thread_llm(plain)) as server:
        messages = [{"role": "user", "content": "Hi"}]
        refused = httpx.post(server.url + "/v1/chat/completions", json={"messages": messages})
        assert refused.status_code == 400
        assert "chat template" in refused.json()["error"]["message"]
        assert httpx.post(server.url + "/v1/completions", json={**LONG, "max_tokens": 2}).status_code == 200


def test_of_several_prompts_the_first_that_fails_ends_the_others() -> None:
    async def outputs() -> AsyncGenerator[tuple[int, RequestOutput], None]:
        failed = CompletionOutput(0, [], "error", None, Detokenizer(None), lambda is_over: "")
        yield 1, RequestOutput("x", [1], [failed], finished=True, error="NaN")
        raise AssertionError("nobody waits for the rest")

    shape: Any = SimpleNamespace()
    with pytest.raises(ApiError, match="NaN"):
        asyncio.run(answer(outputs(), Tale(1, 2), shape))
