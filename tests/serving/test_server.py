"""The real thing, engine in a process of its own: it answers, stays awake, and a signal leaves nothing of it."""

import asyncio
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import psutil
import pytest

from minipaged.cli import FAILED
from minipaged.serving.gate import Gate
from minipaged.serving.server import Closing

from .conftest import thread_llm
from .running import Running, running
from .test_connection import LONG
from .watching import wait_for

ROOT = Path(__file__).parents[2]
START_S, STOP_S = 90, 20


class Server:
    """A process of this project's command line."""

    def __init__(self, folder: Path, *flags: str):
        command = [
            sys.executable,
            "-m",
            "levels.08_serving",
            "--model",
            str(folder),
            "--port",
            "0",
            "--max-model-len",
            "2048",
        ]
        pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen([*command, "--served-model-name", "tiny", *flags], cwd=ROOT, **pipes)

    def wait_until_served(self) -> None:
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().split()[-1]
        self.children = psutil.Process(self.process.pid).children(recursive=True)

    def leave(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """The exit code, and what was said on stderr."""
        self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=STOP_S)
        return self.process.returncode, errors


@contextmanager
def started(folder: Path, *flags: str) -> Iterator[Server]:
    server = Server(folder, *flags)
    try:
        server.wait_until_served()
        yield server
    finally:
        server.process.kill()
        server.process.communicate()


def post(server: Server, path: str = "/v1/completions", **body: Any) -> httpx.Response:
    return httpx.post(server.url + path, json={**LONG, **body}, timeout=60)


def is_free(url: str) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", int(url.rpartition(":")[2]))) != 0


def test_it_answers_stays_awake_and_a_signal_leaves_nothing(folder: Path, served: Running) -> None:
    """One server for all of this, for it takes seconds to start; of two replicas, which must not be noticed."""
    with started(folder, "--data-parallel-size", "2") as server:
        same_words_as_in_one_process(server, served)
        awake_while_long_prompts_are_read(server)
        running_answers_end_and_new_ones_are_refused(server)
        assert is_free(server.url)
        wait_for(lambda: not any(child.is_running() for child in server.children))


def same_words_as_in_one_process(server: Server, served: Running) -> None:
    here = httpx.post(served.url + "/v1/completions", json={**LONG, "max_tokens": 30}).json()
    assert post(server, max_tokens=30).json()["choices"] == here["choices"]


def awake_while_long_prompts_are_read(server: Server) -> None:
    asking = [threading.Thread(target=post, args=(server,), kwargs={"prompt": "z" * 1900, "n": 4}) for _ in range(2)]
    began = time.perf_counter()
    for thread in asking:
        thread.start()
    spent = []
    with httpx.Client() as client:
        while any(thread.is_alive() for thread in asking):
            start = time.perf_counter()
            assert client.get(server.url + "/health").status_code == 200
            spent.append(time.perf_counter() - start)
            time.sleep(0.01)
    took = time.perf_counter() - began
    assert sorted(spent)[len(spent) // 2] < max(0.05, took / 20), (
        "on a machine with other things to do all takes longer"
    )


def running_answers_end_and_new_ones_are_refused(server: Server) -> None:
    with httpx.Client(base_url=server.url, timeout=60) as client:
        body = {**LONG, "max_tokens": 500, "stream": True}
        answer = client.send(client.build_request("POST", "/v1/completions", json=body), stream=True)
        lines = answer.iter_lines()
        next(lines)
        server.process.send_signal(signal.SIGTERM)
        wait_for(lambda: httpx.get(server.url + "/health").status_code == 503)
        refused = post(server)
        assert refused.status_code == 503
        assert "retry-after" in refused.headers
        assert [line for line in lines if line][-1] == "data: [DONE]"
        answer.close()
    _, errors = server.process.communicate(timeout=STOP_S)
    assert server.process.returncode == 0, errors
    assert "Traceback" not in errors


@pytest.mark.parametrize(("timeout_s", "num_signals", "ended"), [(5.0, 1, False), (0.02, 1, True), (5.0, 2, True)])
def test_a_signal_waits_for_answers_and_a_second_one_does_not(timeout_s: float, num_signals: int, ended: bool) -> None:
    """Whoever is not done in time, or is still here at the second signal, is told that it is over."""
    gate, told = Gate(4), list[str]()

    async def run() -> float:
        front, server = SimpleNamespace(gate=gate, end_all=lambda: told.append("ended")), SimpleNamespace()
        closing = Closing(front, server, timeout_s)  # type: ignore[arg-type]
        start = time.monotonic()
        with gate.enter(1):
            for _ in range(num_signals):
                closing.begin()
                await asyncio.sleep(0.05)
        await closing.wait()
        assert server.should_exit
        return time.monotonic() - start

    assert asyncio.run(run()) < 1
    assert bool(told) == ended
    assert gate.closing


def test_a_stage_that_is_killed_is_told_to_everybody(folder: Path, served: Running) -> None:
    """Of two, each in a process of its own, which must not be noticed until then."""
    with started(folder, "--pipeline-parallel-size", "2") as server:
        same_words_as_in_one_process(server, served)
        with httpx.Client(base_url=server.url, timeout=60) as client:
            body = {**LONG, "max_tokens": 2000, "stream": True, "n": 4}
            answer = client.send(client.build_request("POST", "/v1/completions", json=body), stream=True)
            lines = answer.iter_lines()
            next(lines)
            os.kill(server.children[-1].pid, signal.SIGKILL)
            assert '"engine_dead"' in [line for line in lines if line][-1]
            answer.close()
        assert httpx.get(server.url + "/health").status_code == 500
        assert post(server).json()["error"]["code"] == "engine_dead"
        code, errors = server.leave(signal.SIGINT)
        assert (code, "the engine died" in errors.splitlines()[-1]) == (FAILED, True)
        assert is_free(server.url)


@pytest.mark.parametrize(
    "flags", [["--port", "70000"], ["--json", "x.json"], ["--ssl-keyfile", "x"], ["--api-key", ""]]
)
def test_what_cannot_be_served_is_said_in_one_line_before_anything_is_loaded(folder: Path, flags: list[str]) -> None:
    from levels.lesson import main
    from minipaged.cli import REFUSED

    assert main(8, ["--model", str(folder), *flags]) == REFUSED


def test_with_a_certificate_it_is_https(folder: Path, tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl, which makes the certificate, is not here")
    key, certificate = str(tmp_path / "key.pem"), str(tmp_path / "certificate.pem")
    make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 -subj /CN=localhost"
    name = ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*make.split(), *name, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    with running(lambda: thread_llm(folder), ssl_keyfile=key, ssl_certfile=certificate) as server:
        assert server.url.startswith("https://")
        with httpx.Client(base_url=server.url, verify=ssl.create_default_context(cafile=certificate)) as client:
            assert client.post("/v1/completions", json={"prompt": "a", "max_tokens": 2}).status_code == 200
            lines = client.post("/v1/completions", json={"prompt": "a", "max_tokens": 2, "stream": True}).text
        assert lines.endswith("data: [DONE]\n\n")


def test_a_port_that_is_taken_is_said_at_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from levels.lesson import main
    from minipaged.cli import REFUSED

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(8, ["--model", str(folder), "--port", str(port)]) == REFUSED
    [line] = capsys.readouterr().err.splitlines()
    assert str(port) in line
