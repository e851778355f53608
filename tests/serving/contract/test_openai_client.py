"""OpenAI's own client, as people use it: plain, streaming, async, structured, and its errors."""

import asyncio
from collections.abc import Iterator
from typing import Literal

import openai
import pytest
from pydantic import BaseModel

from .asking import PROMPT
from .conftest import Address

USER = [{"role": "user", "content": "Hi"}]


class Person(BaseModel):
    name: Literal["Ada", "Bo"]
    old: bool


@pytest.fixture(scope="module")
def client(address: Address) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=address.url + "/v1", api_key=address.key or "none", max_retries=0) as made:
        yield made


def test_models(client: openai.OpenAI, address: Address) -> None:
    assert address.model in [model.id for model in client.models.list()]
    assert client.models.retrieve(address.model).id == address.model


def test_completions(client: openai.OpenAI, address: Address) -> None:
    answer = client.completions.create(model=address.model, prompt=PROMPT, max_tokens=8, temperature=0, logprobs=2)
    assert answer.usage is not None
    assert answer.usage.completion_tokens <= 8
    pieces = client.completions.create(model=address.model, prompt=PROMPT, max_tokens=8, temperature=0, stream=True)
    assert "".join(piece.choices[0].text for piece in pieces) == answer.choices[0].text
    assert answer.choices[0].logprobs is not None
    assert answer.choices[0].logprobs.tokens


def test_chat_streams_and_reports_its_usage(client: openai.OpenAI, address: Address) -> None:
    ask = {"model": address.model, "messages": USER, "max_completion_tokens": 8, "temperature": 0}
    whole = client.chat.completions.create(**ask)  # type: ignore[call-overload]
    text, usage = "", None
    options = {"stream": True, "stream_options": {"include_usage": True}}
    for piece in client.chat.completions.create(**ask, **options):  # type: ignore[call-overload]
        text += piece.choices[0].delta.content or "" if piece.choices else ""
        usage = piece.usage or usage
    assert text == whole.choices[0].message.content
    assert usage is not None
    assert usage.total_tokens == whole.usage.total_tokens


def test_the_streaming_helper(client: openai.OpenAI, address: Address) -> None:
    with client.chat.completions.stream(model=address.model, messages=USER, max_tokens=8, temperature=0) as stream:  # type: ignore[arg-type]
        chunks = [event for event in stream if event.type == "chunk"]
    [choice] = chunks[-1].snapshot.choices
    assert choice.message.role == "assistant"
    assert choice.finish_reason in ("stop", "length")


def test_structured_outputs(client: openai.OpenAI, address: Address) -> None:
    answer = client.chat.completions.parse(
        model=address.model,
        messages=USER,  # type: ignore[arg-type]
        response_format=Person,
        max_tokens=60,
    )
    assert isinstance(answer.choices[0].message.parsed, Person)


def test_several_at_once(address: Address) -> None:
    async def ask() -> list[str]:
        async with openai.AsyncOpenAI(base_url=address.url + "/v1", api_key=address.key or "none") as client:
            answers = await asyncio.gather(
                *(
                    client.completions.create(model=address.model, prompt=str(i), max_tokens=6, temperature=0)
                    for i in range(20)
                )
            )
            streams = [
                await client.completions.create(
                    model=address.model, prompt=str(i), max_tokens=6, temperature=0, stream=True
                )
                for i in range(20)
            ]
            texts = ["".join([piece.choices[0].text async for piece in stream]) for stream in streams]
        assert texts == [answer.choices[0].text for answer in answers]
        return texts

    assert len(asyncio.run(ask())) == 20


def test_errors_are_those_of_openai(client: openai.OpenAI, address: Address) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model=address.model, prompt=PROMPT, max_tokens=0)
    assert caught.value.param == "max_tokens"
    with pytest.raises(openai.NotFoundError) as missing:
        client.completions.create(model="x", prompt=PROMPT)
    assert missing.value.code == "model_not_found"
