"""A conversation remembers what was said, and ^C ends an answer, not the program."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from minipaged import chat
from minipaged.chat import Client, Conversation, Message, main, talk
from minipaged.cli import DONE, FAILED, REFUSED


class Server:
    """Answers with its own count of the messages, in pieces."""

    def __init__(self, fails_with: BaseException | None = None):
        self.fails_with, self.asked = fails_with, list[list[Message]]()

    def ask(self, messages: list[Message]) -> Iterator[str]:
        self.asked.append([*messages])
        yield f"{len(messages)} "
        if self.fails_with:
            raise self.fails_with
        yield "said"


def say(server: Server, lines: list[Any], **options: Any) -> str:
    """What stands on the screen after these lines; an exception in their place is what the keyboard gives."""
    written, typed = list[str](), iter(lines)

    def read(prompt: str) -> str:
        line = next(typed, EOFError())
        if isinstance(line, BaseException):
            raise line
        return str(line)

    talk(Conversation(server.ask, **options), read, written.append)
    return "".join(written)


def test_every_question_comes_with_all_that_was_said() -> None:
    server = Server()
    assert say(server, ["Hi", "", "And?"], system="Be brief.") == "2 said\n\n4 said\n\n\n"
    assert [message["role"] for message in server.asked[1]] == ["system", "user", "assistant", "user"]
    assert server.asked[1][2]["content"] == "2 said"


def test_a_new_conversation_knows_nothing_but_its_beginning() -> None:
    server = Server()
    say(server, ["Hi", "/new", "Ho"], system="Be brief.")
    assert [message["content"] for message in server.asked[1]] == ["Be brief.", "Ho"]


def test_an_interrupt_stops_the_answer_and_what_was_said_stays() -> None:
    server = Server(KeyboardInterrupt())
    shown = say(server, ["Hi", "And?"])
    assert shown.startswith("1  [stopped]\n")
    assert server.asked[1][1] == {"role": "assistant", "content": "1 "}


def test_an_interrupt_at_the_prompt_drops_the_line() -> None:
    server = Server()
    say(server, [KeyboardInterrupt(), "Hi", "/exit", "never"])
    assert len(server.asked) == 1


def test_what_the_server_refuses_is_shown_and_the_conversation_goes_on() -> None:
    server = Server(RuntimeError("the engine has died"))
    assert "[the engine has died]" in say(server, ["Hi"])

    def refuse(messages: list[Message]) -> Iterator[str]:
        raise RuntimeError("too long")
        yield ""

    conversation = Conversation(refuse)
    lines = iter(["Hi", "/exit"])
    talk(conversation, lambda prompt: next(lines), lambda text: None)
    assert conversation.messages == []


MODELS = {"data": [{"id": "tiny"}, {"id": "other"}]}


def served(answer: Any) -> httpx.Client:
    """It has two models, and answers everything else as told."""

    def handler(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json=MODELS) if request.url.path == "/v1/models" else answer(request)

    return httpx.Client(base_url="http://x", transport=httpx.MockTransport(handler))


def stream(*events: str) -> httpx.Response:
    return httpx.Response(200, text="".join(f"data: {event}\n\n" for event in events))


def test_a_client_streams_from_the_first_model_it_finds() -> None:
    asked = list[httpx.Request]()

    def handler(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return stream('{"choices": [{"delta": {"content": "Hi"}}]}', '{"choices": [{"delta": {}}]}', "[DONE]")

    client = Client(served(handler), None, {"temperature": 0})
    assert "".join(client.ask([{"role": "user", "content": "Hi"}])) == "Hi"
    assert b'"model":"tiny"' in asked[0].content.replace(b": ", b":")


@pytest.mark.parametrize(("response", "words"), [
    (httpx.Response(401, json={"error": {"message": "the API key is missing"}}), "key is missing"),
    (httpx.Response(502, text="<html>"), "502"),
    (stream('{"choices": [{"delta": {"content": "Hi"}}]}'), "cut"), (stream("{"), "no JSON"),
    (stream('{"error": "full"}'), "full"),
])  # fmt: skip
def test_errors_are_one_line(response: httpx.Response, words: str) -> None:
    client = Client(served(lambda request: response), "tiny", {})
    with pytest.raises(RuntimeError, match=words):
        list(client.ask([]))


def test_where_nobody_answers_it_says_how_to_start_a_server(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--url", "http://127.0.0.1:9"]) == FAILED
    [line] = capsys.readouterr().err.splitlines()
    assert "levels.08_serving" in line


def test_the_program_end_to_end(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        return stream('{"choices": [{"delta": {"content": "Ho"}}]}', "[DONE]")

    lines = iter(["Hi", "/exit"])
    monkeypatch.setattr("builtins.input", lambda prompt: next(lines))
    http = served(handler)
    monkeypatch.setattr(chat.httpx, "Client", lambda **options: http)
    assert main(["--model", "tiny"]) == DONE
    assert capsys.readouterr().out == "Ho\n\n"


def test_what_a_terminal_would_obey_is_shown_instead() -> None:
    def clear(messages: list[Message]) -> Iterator[str]:
        yield "a\x1b"  # an escape that comes in two pieces
        yield "[2J\r\x9b\u202eb\tc\n"
        raise RuntimeError("\x1b]0;title\x07")

    written, lines = list[str](), iter(["Hi", "/exit"])
    talk(Conversation(clear), lambda prompt: next(lines), written.append)
    assert "".join(written) == "a\u241b[2J\u240d\ufffd\ufffdb\tc\n[\u241b]0;title\u2407]\n\n"


def test_a_model_that_the_server_has_not_is_refused_at_once() -> None:
    assert Client(served(lambda request: stream("[DONE]")), "other", {}).model == "other"
    with pytest.raises(ValueError, match="tiny, other"):
        Client(served(lambda request: stream("[DONE]")), "nobody", {})
    http = httpx.Client(
        base_url="http://x", transport=httpx.MockTransport(lambda request: httpx.Response(200, text="Hi"))
    )
    with pytest.raises(RuntimeError, match="OpenAI"):
        Client(http, None, {})


@pytest.mark.parametrize("flags", [
    ["--url", "here"], ["--url", "ftp://x"], ["--url", "http://"], ["--url", "http://x:y"], ["--max-tokens", "0"],
    ["--temperature", "-1"],
])  # fmt: skip
def test_what_no_server_could_be_asked_is_refused_at_once(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(flags) == REFUSED
    assert flags[0].removeprefix("--").replace("-", "_") in capsys.readouterr().err.replace("--url", "url")
