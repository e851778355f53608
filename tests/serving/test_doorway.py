"""Nobody passes without the key; every request leaves a line in the log."""

import base64
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from minipaged.serving.doorway import given_key

from .conftest import thread_llm
from .running import Running, running
from .watching import wait_for

KEY = "s3cret-ключ"
POSTS = ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize")
GETS = ("/", "/v1/models", "/v1/models/tiny", "/metrics", "/version", "/openapi.json", "/nothing")
ALMOST_HEALTH = ("/health/", "//health", "/health/x", "/Health")
WRONG = ["", "Bearer", "Bearer wrong", KEY, f"Basic {KEY}", "Basic !!!", "Bearer s3cret", f"Bearer {KEY}x"]


@pytest.fixture(scope="module")
def locked(folder: Path) -> Iterator[Running]:
    with running(lambda: thread_llm(folder), api_key=KEY, allowed_origins=("http://page.test",)) as server:
        yield server


def headers(authorization: str) -> dict[str, str]:
    return {"Authorization": authorization.encode()} if authorization else {}  # type: ignore[dict-item]


@pytest.mark.parametrize("authorization", WRONG)
def test_every_route_but_health_asks_for_the_key(locked: Running, authorization: str) -> None:
    with httpx.Client(base_url=locked.url, headers=headers(authorization)) as client:
        answers = [client.post(path, json={"prompt": "a", "messages": []}) for path in POSTS]
        answers += [client.get(path) for path in (*GETS, *ALMOST_HEALTH)]
        for answer in answers:
            assert answer.status_code == 401, answer.request.url
            assert answer.json()["error"]["code"] == "invalid_api_key"
            assert "www-authenticate" in answer.headers
        assert client.get("/health").status_code == 200


def test_with_the_key_everything_is_open(locked: Running) -> None:
    basic = base64.b64encode(f"anybody:{KEY}".encode()).decode()
    for authorization in (f"Bearer {KEY}", f"bearer {KEY}", f"Basic {basic}"):
        with httpx.Client(base_url=locked.url, headers=headers(authorization)) as client:
            assert client.get("/v1/models").status_code == 200
            assert client.post("/v1/completions", json={"prompt": "a", "max_tokens": 1}).status_code == 200


def test_a_browser_is_asked_for_a_password_at_the_page_alone(locked: Running) -> None:
    assert httpx.get(locked.url + "/").headers["www-authenticate"].startswith("Basic")
    assert httpx.get(locked.url + "/v1/models").headers["www-authenticate"].startswith("Bearer")


@pytest.mark.parametrize(("authorization", "expected"), [
    ("Bearer a b", b"a b"), ("Basic " + base64.b64encode(b"me:a:b").decode(), b"a:b"), ("Digest x", b""), ("", b""),
    ("Basic " + base64.b64encode(b"no colon").decode(), b""),
])  # fmt: skip
def test_what_counts_as_a_key(authorization: str, expected: bytes) -> None:
    assert given_key(authorization) == expected


def test_pages_of_others_are_told_nothing_unless_they_are_listed(locked: Running, served: Running) -> None:
    asking = {"Origin": "http://page.test", "Access-Control-Request-Method": "POST"}
    allowed = httpx.options(locked.url + "/v1/completions", headers=asking)
    assert allowed.headers["access-control-allow-origin"] == "http://page.test"
    stranger = httpx.options(locked.url + "/v1/completions", headers={**asking, "Origin": "http://other.test"})
    assert "access-control-allow-origin" not in stranger.headers
    closed = httpx.options(served.url + "/v1/completions", headers=asking)
    assert "access-control-allow-origin" not in closed.headers


def test_every_request_is_one_line_of_json(served: Running, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="minipaged.access"):
        answers = [
            httpx.post(served.url + "/v1/completions", json={"prompt": "a", "max_tokens": 2}),
            httpx.post(served.url + "/v1/completions", json={"prompt": "a", "max_tokens": 0}),
            httpx.get(served.url + "/a%0Ab"),
        ]
        wait_for(lambda: len(caplog.records) == 3)  # a line is written when all is over, a moment after the answer
    lines = [json.loads(record.message) for record in caplog.records if record.name == "minipaged.access"]
    assert [line["status"] for line in lines] == [200, 400, 404]
    assert [line["request_id"] for line in lines] == [answer.headers["x-request-id"] for answer in answers]
    assert all(line["seconds"] > 0 and line["client"] == "127.0.0.1" for line in lines)
    assert not any("\n" in record.message for record in caplog.records)


@pytest.mark.parametrize(("host", "status"), [
    ("127.0.0.1:8000", 200), ("localhost:1", 200), ("LOCALHOST", 200), ("[::1]:80", 200), ("10.1.2.3", 200), ("", 200),
    ("me.localhost", 200), ("known.test:80", 200), ("evil.test", 421), ("127.0.0.1.evil.test:8000", 421),
    ("localhost.evil.test", 421), ("evil.test:localhost", 421), ("known.test.evil.test", 421), ("x" * 5000, 421),
])  # fmt: skip
def test_a_page_whose_name_was_made_to_lead_here_is_turned_away(known: Running, host: str, status: int) -> None:
    for path in ("/health", "/", "/v1/models"):
        answer = httpx.get(known.url + path, headers={"Host": host})
        assert answer.status_code == status
        assert status == 200 or (answer.json()["error"]["type"] and len(answer.content) < 1000)


@pytest.fixture(scope="module")
def known(folder: Path) -> Iterator[Running]:
    with running(lambda: thread_llm(folder), allowed_hosts=("Known.test",)) as server:
        yield server


def test_a_server_for_everybody_has_whatever_name_they_give_it(folder: Path) -> None:
    with running(lambda: thread_llm(folder), host="0.0.0.0") as server:
        address = server.url.replace("0.0.0.0", "127.0.0.1")
        assert httpx.get(address + "/health", headers={"Host": "llm.example"}).status_code == 200


def test_a_fault_of_ours_is_logged_numbered_and_readable_by_pages_that_may(
    locked: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> bytes:
        raise RuntimeError("a secret path")

    monkeypatch.setattr(locked.front.metrics, "render", broken)
    with caplog.at_level(logging.INFO, logger="minipaged"):
        asking = {**headers(f"Bearer {KEY}"), "Origin": "http://page.test"}
        answer = httpx.get(locked.url + "/metrics", headers=asking)
        wait_for(lambda: any(record.name == "minipaged.access" for record in caplog.records))
    assert (answer.status_code, "secret" in answer.text) == (500, False)
    assert answer.headers["access-control-allow-origin"] == "http://page.test"
    [line] = [json.loads(record.message) for record in caplog.records if record.name == "minipaged.access"]
    assert (line["status"], line["request_id"]) == (500, answer.headers["x-request-id"])
    [fault] = [record for record in caplog.records if record.name != "minipaged.access"]
    assert fault.exc_info is not None
    assert "secret" in str(fault.exc_info[1])
