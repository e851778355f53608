"""Long texts wait for each other and nobody for them; what cannot fit is refused before it is read."""

import asyncio
import threading
from typing import Any

import httpx
import pytest

from minipaged.serving import reading
from minipaged.serving.reading import LONG_BYTES, Readers
from minipaged.vocabulary import measure_longest

from .running import Running

BYTES = {"type": "ByteLevel"}
PLAIN = {
    "normalizer": None,
    "truncation": None,
    "pre_tokenizer": BYTES,
    "added_tokens": [],
    "model": {"vocab": {"ab": 0}},
}
LONGER = {"content": "<end>", "lstrip": False, "rstrip": False}


def test_short_texts_do_not_wait_behind_long_ones_and_nobody_reads_for_who_has_gone() -> None:
    async def run() -> tuple[list[str], int]:
        readers, go_on, read = Readers(), threading.Event(), list[str]()

        def work(name: str, waits: bool) -> str:
            read.append(name)
            assert not waits or go_on.wait(10)
            return name

        long = [asyncio.create_task(readers.read(LONG_BYTES + 1, work, f"long {i}", True)) for i in range(20)]
        await asyncio.sleep(0.05)
        most = len(read)
        assert await asyncio.gather(*(readers.read(10, work, f"short {i}", False) for i in range(20)))
        for task in long[1:]:
            task.cancel()
        await asyncio.gather(*long[1:], return_exceptions=True)
        go_on.set()
        await long[0]
        readers.long.shutdown()
        return read, most

    read, most = asyncio.run(run())
    assert most == 1, "one at a time"
    assert sorted(read) == sorted(["long 0", *(f"short {i}" for i in range(20))])


@pytest.mark.parametrize(("changes", "longest"), [
    ({}, 2), ({"added_tokens": [LONGER]}, 5), ({"added_tokens": [{**LONGER, "lstrip": True}]}, None),
    ({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits"}, BYTES]}}, 2),
    ({"pre_tokenizer": {"pretokenizers": [{"type": "Split", "behavior": "Removed"}, BYTES]}}, None),
    ({"pre_tokenizer": {"type": "Whitespace"}}, None), ({"pre_tokenizer": None}, None),
    ({"normalizer": {"type": "Strip"}}, None), ({"truncation": {"max_length": 5}}, None),
])  # fmt: skip
def test_how_much_text_a_token_can_be(changes: dict[str, Any], longest: int | None) -> None:
    """Where words vanish, or blanks around them, a long text may be few tokens."""
    assert measure_longest({**PLAIN, **changes}) == longest


def read_short_ones(tokenizer: Any, text: str, **options: Any) -> list[int]:
    assert len(text) < 1000, "this need not be read"
    return [1]


def test_eight_megabytes_of_text_are_refused_unread(served: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """To be read they would take ten seconds."""
    for name in ("encode", "to_tokens"):
        monkeypatch.setattr(reading, name, read_short_ones)
    text = "a b " * (2 << 20)
    for path, body in (
        ("/v1/completions", {"prompt": text[:-100]}),
        ("/v1/completions", {"prompt": ["a", text[:-100]]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": text[:-200]}]}),
    ):
        answer = httpx.post(served.url + path, json=body, timeout=60)
        assert answer.status_code == 400, answer.text
        assert "max_model_len 256" in answer.json()["error"]["message"]
