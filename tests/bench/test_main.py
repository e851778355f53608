"""The command line: a sweep over a server, the engine alone, a search; refusals before anything runs."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from minipaged.bench import serve as serve_module
from minipaged.bench import tune
from minipaged.bench.__main__ import main
from minipaged.bench.serve import parse_rates
from minipaged.cli import DONE, FAILED, REFUSED

from ..tiny import tiny_model
from ..tiny_tokenizer import tiny_tokenizer

CHUNK = 'data: {"choices": [{"text": "a"}]}\n\n'
USAGE = 'data: {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}\n\n'
FEW = ["--num-prompts", "3", "--input-len", "2", "--output-len", "2"]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> list[httpx.Request]:
    """Every URL answers at once."""
    asked, real = list[httpx.Request](), httpx.AsyncClient

    def handler(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "tiny"}]})
        return httpx.Response(200, text=CHUNK + CHUNK + USAGE + "data: [DONE]\n\n")

    def client(**options: Any) -> httpx.AsyncClient:
        return real(base_url=options["base_url"], transport=httpx.MockTransport(handler))

    monkeypatch.setattr(serve_module.httpx, "AsyncClient", client)
    return asked


def test_a_sweep_is_a_run_for_each_rate(fake: list[httpx.Request], tmp_path: Path, capsys: Any) -> None:
    document, picture = tmp_path / "out.json", tmp_path / "out.svg"
    flags = ["--request-rate", "500,inf", "--slo-ttft", "9", "--json", str(document), "--plot", str(picture)]
    assert main(["serve", *FEW, *flags]) == DONE
    runs = json.loads(document.read_text())["runs"]
    assert [run["request_rate"] for run in runs] == [500.0, None]
    assert all(run["requests"] == 3 and run["failed"] == 0 and run["output_tokens"] == 6 for run in runs)
    assert all(run["goodput_requests_per_s"] == run["requests_per_s"] for run in runs)
    assert "all at once" in capsys.readouterr().out
    assert picture.read_text().startswith("<?xml")
    prompts = [json.loads(request.content)["prompt"] for request in fake if request.content]
    assert len(set(prompts)) == len(prompts), "no rate finds in a cache what another read"


def test_where_nobody_answers(capsys: Any) -> None:
    assert main(["serve", "--url", "http://127.0.0.1:9"]) == FAILED
    assert "no server answers" in capsys.readouterr().err


@pytest.mark.parametrize("mode", ["latency", "throughput"])
def test_the_engine_alone(mode: str, tmp_path: Path) -> None:
    folder, document = tiny_tokenizer(tiny_model(tmp_path / "tiny")), tmp_path / "out.json"
    engine = ["--model", str(folder), "--num-blocks", "16", "--max-model-len", "64"]
    assert main([mode, *FEW, *engine, "--json", str(document)]) == DONE
    found = json.loads(document.read_text())
    assert found["mode"] == mode
    assert found["runs"][0]["output_tokens"] == 6


def test_the_settings_that_serve_most_in_time_win(
    fake: list[httpx.Request], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any
) -> None:
    started = list[dict[str, Any]]()

    @contextmanager
    def server(options: dict[str, Any]) -> Iterator[str]:
        started.append(options)
        yield f"http://127.0.0.1:{options['max_num_seqs']}"

    monkeypatch.setattr(tune, "server", server)
    document = tmp_path / "out.json"
    flags = ["--seats", "4,8", "--budgets", "64", "--slo-ttft", "9", "--json", str(document)]
    assert main(["auto-tune", *FEW, *flags]) == DONE
    found = json.loads(document.read_text())
    assert [options["max_num_seqs"] for options in started] == [4, 8]
    best = max(found["runs"], key=lambda run: run["goodput_requests_per_s"])
    assert found["best"] == best["engine"]
    assert f"--max-num-seqs {best['engine']['max_num_seqs']}" in capsys.readouterr().out


def test_a_server_that_does_not_start_says_why() -> None:
    with pytest.raises(RuntimeError, match="nowhere"), tune.server({"model": "/nowhere/at/all"}):
        pass


@pytest.mark.parametrize("words", [
    ["serve", "--request-rate", "0"], ["serve", "--request-rate", "fast"], ["serve", "--num-prompts", "0"],
    ["serve", "--burstiness", "0"], ["serve", "--plot", "x.txt"], ["serve", "--json", "/nowhere/x"],
    ["auto-tune"], ["auto-tune", "--slo-ttft", "1", "--seats", "x"],
    ["auto-tune", "--slo-ttft", "1", "--request-rate", "1,2"],
])  # fmt: skip
def test_what_makes_no_sense_is_refused_in_one_line(words: list[str], capsys: Any) -> None:
    assert main(words) == REFUSED
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_rates() -> None:
    assert parse_rates("1,2.5,inf") == [1.0, 2.5, float("inf")]
