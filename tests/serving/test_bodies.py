"""A long body is read beside the loop, piece by piece, and says what it says to json.loads."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.exceptions import HTTPException

from minipaged.serving import bodies
from minipaged.serving.bodies import parse_in_pieces
from minipaged.serving.reading import LONG_BYTES

from .running import Running

LONG = json.dumps({"prompt": "a", "max_tokens": 1, "ignored": "x" * LONG_BYTES}).encode()
ATOMS = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=9)
VALUES = st.recursive(
    ATOMS, lambda some: st.lists(some, max_size=9) | st.dictionaries(st.text(max_size=3), some, max_size=4)
)
DAMAGE = st.sampled_from(["", ",", "]", "[", "1", ".", "-", '"', " ", "e"])


def read(work: Any, text: str) -> Any:
    try:
        return work(text)
    except json.JSONDecodeError as error:
        return error.msg, error.pos


@given(VALUES, st.sampled_from([None, 1]), st.integers(0, 200), DAMAGE, st.integers(1, 20))
def test_it_says_what_json_loads_says(value: Any, indent: int | None, at: int, damage: str, piece: int) -> None:
    text = json.dumps(value, indent=indent)
    text = text[: at % (len(text) + 1)] + damage + text[at % (len(text) + 1) :]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bodies, "PIECE", piece)
        assert read(parse_in_pieces, text) == read(json.loads, text)


@pytest.mark.parametrize(
    "text", ["[1,]", "[1,2,]", "[,1]", "[1,,2]", "[,]", "[1 2]", "[01,2]", "[1,2", "[1,2}", "[-,1]"]
)
def test_what_is_no_list_of_numbers_is_refused_at_its_place(text: str) -> None:
    assert read(parse_in_pieces, text) == read(json.loads, text)


def test_numbers_come_in_pieces_of_limited_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for more than one of them."""
    sizes, loads = list[int](), json.loads

    def noted(text: Any, **how: Any) -> Any:
        if not how:
            sizes.append(len(text))
        return loads(text, **how)

    monkeypatch.setattr(json, "loads", noted)
    monkeypatch.setattr(bodies, "PIECE", 1000)
    numbers = list(range(20_000))
    assert parse_in_pieces(json.dumps({"prompt": [numbers, numbers]}).encode()) == {"prompt": [numbers, numbers]}
    assert len(sizes) > 200
    assert max(sizes) <= 1000 + len("[]")


@pytest.mark.parametrize("value", [[[]], [""], [None], [{"a": 1}], {"a": 1}])
def test_more_values_than_a_request_has_are_refused(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "MAX_VALUES", 50)
    number = 25 if value == [{"a": 1}] else 50
    many = value * number if isinstance(value, list) else {str(i): i for i in range(number)}
    assert parse_in_pieces(json.dumps(many).encode()) == many
    many = [*many, []] if isinstance(many, list) else {**many, "b": 1}
    with pytest.raises(HTTPException, match="at most 50 values"):
        parse_in_pieces(json.dumps(many).encode())


def test_health_is_told_while_a_long_body_is_read(served: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, told = threading.Event(), threading.Event()

    def slow(body: bytes) -> Any:
        begun.set()
        assert told.wait(20), "nobody else is served meanwhile"
        return json.loads(body)

    monkeypatch.setattr(bodies, "parse_in_pieces", slow)
    with ThreadPoolExecutor(1) as client, httpx.Client(base_url=served.url, timeout=30) as other:
        headers = {"Content-Type": "application/json"}
        answer = client.submit(httpx.post, served.url + "/v1/completions", content=LONG, headers=headers, timeout=60)
        assert begun.wait(20)
        assert other.get("/health").status_code == 200
        assert other.post("/v1/completions", json={"prompt": "a", "max_tokens": 1}).status_code == 200
        told.set()
        assert answer.result().status_code == 200


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (LONG + b"]", f"the body is no JSON: Extra data at character {len(LONG)}"),
        (LONG.replace(b'"a"', b"[ 1, x]"), "the body is no JSON: Expecting value at character 16"),
        (b'{"prompt": "a", "x": [' + b"[]," * bodies.MAX_VALUES + b"[]]}", "a body may have at most 300000 values"),
        (b'{"prompt": ' + b"[" * LONG_BYTES, "There was an error parsing the body"),
        (b'{"prompt": [' + b"1," * LONG_BYTES + b"-1]}", "prompt[65536] must be"),
    ],
)
def test_a_long_body_that_cannot_be_read_is_refused_in_the_words_of_a_short_one(
    served: Running, body: bytes, sentence: str
) -> None:
    headers = {"Content-Type": "application/json"}
    answer = httpx.post(served.url + "/v1/completions", content=body, headers=headers, timeout=60)
    assert answer.status_code == 400, answer.text
    assert sentence in answer.json()["error"]["message"]
