"""Whoever holds a connection and does nothing with it is let go, and told why if it can be."""

import json
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from minipaged.serving import doorway, patience
from minipaged.serving.patience import Connection

from .conftest import thread_llm
from .running import Running, running
from .watching import is_empty, wait_for

SOON_S = 0.2
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def connect(server: Running) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=20)


def hear(line: socket.socket) -> tuple[int, dict[str, Any]]:
    """All that is said until the connection ends: a status, and an error."""
    said = b""
    while piece := line.recv(65536):
        said += piece
    head, _, body = said.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"]


@pytest.mark.parametrize("said", [b"", b"\r\n", HEAD, b"GET /health HT"])
def test_a_head_that_does_not_come_to_its_end(served: Running, monkeypatch: pytest.MonkeyPatch, said: bytes) -> None:
    monkeypatch.setattr(patience, "HEAD_S", SOON_S)
    with connect(served) as line:
        line.sendall(said)
        status, error = hear(line)
    assert (status, error["type"]) == (408, "invalid_request_error")


def test_a_second_request_on_a_connection_has_as_long_as_the_first(
    served: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connect(served) as line:
        line.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert line.recv(65536).startswith(b"HTTP/1.1 200")
        monkeypatch.setattr(patience, "HEAD_S", SOON_S)
        line.sendall(b"GET /hea")
        assert hear(line)[0] == 408


def test_a_body_that_does_not_come(served: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doorway, "BODY_S", SOON_S)
    with connect(served) as line:
        line.sendall(HEAD + b'Content-Length: 100\r\n\r\n{"prompt": ')
        assert hear(line)[0] == 408


def test_whoever_was_in_time_may_listen_as_long_as_it_takes(served: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((patience, "HEAD_S"), (doorway, "BODY_S")):
        monkeypatch.setattr(module, name, SOON_S)
    served.llm.pause()
    with connect(served) as line:
        body = b'{"prompt": "a", "max_tokens": 2}'
        line.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        line.settimeout(3 * SOON_S)
        with pytest.raises(TimeoutError):
            line.recv(1)
        line.settimeout(20)
        served.llm.go_on()
        assert line.recv(65536).startswith(b"HTTP/1.1 200")


def test_a_head_without_an_end_to_it(served: Running) -> None:
    with connect(served) as line:
        line.sendall(HEAD + b"X: " + b"x" * patience.HEAD_BYTES)
        assert hear(line)[0] == 431


def test_what_is_no_http_is_told_so_in_json(served: Running) -> None:
    with connect(served) as line:
        line.sendall(b"HELO\x00\r\n\r\n")
        assert hear(line)[0] == 400


def test_one_connection_too_many(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(lambda: thread_llm(folder)) as server:
        monkeypatch.setattr(patience, "MAX_CONNECTIONS", 2)
        with connect(server), connect(server), connect(server) as line:
            assert hear(line)[0] == 503
        wait_for(lambda: httpx.get(server.url + "/health").status_code == 200)


def test_who_takes_nothing_of_what_is_sent_has_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes of what is not taken yet, each time that somebody looks: less is some progress."""
    left, ended, timers = [100, 90, 90], list[str](), list[Any]()

    class Loop:
        def call_later(self, seconds: float, work: Any, *args: Any) -> Any:
            timers.append((work, args))
            return SimpleNamespace(cancel=timers.clear)

    connection = object.__new__(Connection)
    connection.loop = Loop()  # type: ignore[assignment]
    transport = SimpleNamespace(get_write_buffer_size=lambda: left.pop(0), abort=lambda: ended.append("ended"))
    connection.transport, connection.flow = transport, SimpleNamespace(pause_writing=lambda: None)  # type: ignore[assignment]
    connection.flow.resume_writing = lambda: None  # type: ignore[method-assign]
    connection.pause_writing()
    for expected in ([], ["ended"]):
        work, args = timers.pop()
        work(*args)
        left.insert(0, 90) if not ended else None
        assert ended == expected
    left.append(5)
    connection.pause_writing()
    connection.resume_writing()
    assert timers == []


def test_a_client_that_reads_nothing_loses_its_place(served: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "STALLED_S", SOON_S)
    monkeypatch.setattr(Connection, "connection_made", small_buffers(Connection.connection_made))
    with connect(served) as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        body = json.dumps(
            {"prompt": "a", "max_tokens": 200, "n": 16, "logprobs": 20, "ignore_eos": True, "stream": True}
        )
        line.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body.encode())
        wait_for(lambda: served.front.gate.num_inside == 16)
        wait_for(lambda: served.front.gate.num_inside == 0, 60)
    wait_for(lambda: is_empty(served.llm))


def small_buffers(made: Any) -> Any:
    def connection_made(self: Connection, transport: Any) -> None:
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        transport.set_write_buffer_limits(high=4096)
        made(self, transport)

    return connection_made
