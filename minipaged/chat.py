"""A conversation in the terminal, with any server that speaks OpenAI's API.

    python -m minipaged.chat                             a server at http://127.0.0.1:8000
    python -m minipaged.chat --url URL --api-key K --system "Answer in one sentence."

    > What is a KV cache?
    A KV cache is ...        words as they come; ^C stops the answer, what was said stays said
    > /new                   forget the conversation        ^D or /exit: leave

Invariant: the server is asked for the whole conversation each time and remembers nothing of it (what it finds again in
its prefix cache is why the second question is answered sooner); what it says is text, and moves no cursor. (From level
08.)"""

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import httpx

from .checks import check_integer, check_number
from .cli import DONE, Parser, guarded, leave
from .sse import StreamReader, delta

TIMEOUT = httpx.Timeout(10.0, read=None)  # a long queue is no reason to hang up
BIDI = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))  # they turn the line around
CONTROLS = dict.fromkeys([*range(0x7F, 0xA0), *BIDI], "\ufffd")
CONTROLS |= {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\n\t"}  # their pictures in Unicode
Message = dict[str, str]


class Conversation:
    """What has been said; ask: who answers."""

    def __init__(self, ask: Callable[[list[Message]], Iterator[str]], system: str | None = None):
        self.ask, self.beginning = ask, [{"role": "system", "content": system}] if system else []
        self.messages = [*self.beginning]

    def forget(self) -> None:
        self.messages = [*self.beginning]

    def say(self, text: str) -> Iterator[str]:
        """The answer, as it comes. However it ends, what came of it belongs to the conversation."""
        self.messages.append({"role": "user", "content": text})
        answer = ""
        try:
            for piece in self.ask(self.messages):
                answer += piece
                yield piece
        finally:
            if answer:
                self.messages.append({"role": "assistant", "content": answer})
            else:
                self.messages.pop()  # a question that nobody answered was not asked


class Client:
    """Somebody at a server. Raises RuntimeError with what the server says, or that nobody is there; ValueError for a
    model that is not."""

    def __init__(self, http: httpx.Client, model: str | None, options: dict[str, Any]):
        self.http, self.options = http, options
        self.model = self.find_model(model)

    def find_model(self, wished: str | None) -> str:
        names = self.list_models()
        if not names or wished not in (None, *names):
            raise ValueError(f"--model {wished}: {self.http.base_url} has {', '.join(names) or 'none'}")
        return wished or names[0]

    def list_models(self) -> list[str]:
        try:
            answer = self.http.get("/v1/models")
            check(answer)
            return [str(model["id"]) for model in answer.json()["data"]]
        except httpx.TransportError as error:
            hint = "python -m levels.08_serving starts one"
            raise RuntimeError(f"no server answers at {self.http.base_url}: {error} ({hint})") from error
        except (ValueError, KeyError, TypeError) as error:
            raise RuntimeError(f"{self.http.base_url} does not speak OpenAI's API") from error

    def ask(self, messages: list[Message]) -> Iterator[str]:
        body = {"model": self.model, "messages": messages, "stream": True, **self.options}
        reader = StreamReader()
        try:
            with self.http.stream("POST", "/v1/chat/completions", json=body) as answer:
                check(answer)
                for line in answer.iter_lines():
                    if event := reader.read(line):
                        yield delta(event)
        except httpx.TransportError as error:
            raise RuntimeError(f"the connection broke: {error}") from error
        reader.check_end()


def check(answer: httpx.Response) -> None:
    if answer.is_error:
        answer.read()
        with suppress(ValueError, KeyError, TypeError):
            raise RuntimeError(answer.json()["error"]["message"])
        raise RuntimeError(f"the server answers {answer.status_code}")


def talk(conversation: Conversation, read: Callable[[str], str], write: Callable[[str], Any]) -> None:
    """Until the end of what read gives."""
    while True:
        try:
            text = read("> ").strip()
        except KeyboardInterrupt:  # the line is dropped
            write("\n")
            continue
        except EOFError:
            write("\n")
            return
        if text == "/exit":
            return
        if text == "/new":
            conversation.forget()
        elif text:
            answer(conversation, text, write)


def answer(conversation: Conversation, text: str, write: Callable[[str], Any]) -> None:
    pieces = conversation.say(text)
    try:
        for piece in pieces:
            write(harmless(piece))
    except KeyboardInterrupt:
        write(" [stopped]")
    except RuntimeError as error:
        write(f"[{harmless(str(error))}]")
    finally:
        pieces.close()  # type: ignore[attr-defined]  # a generator: what came is noted before the next question
    write("\n\n")


def harmless(text: str) -> str:
    """What a terminal would obey is shown instead: a model, or who speaks for it, could clear screens and more."""
    return text.translate(CONTROLS)


def main(argv: Sequence[str] | None = None) -> int:
    summary = (__doc__ or "").split("\n", 1)[0]
    parser = Parser(prog="python -m minipaged.chat", description=summary)
    parser.add_argument("--url", metavar="URL", default="http://127.0.0.1:8000", help="default %(default)s")
    key = os.environ.get("MINIPAGED_API_KEY")
    parser.add_argument("--api-key", metavar="K", default=key, help="default: MINIPAGED_API_KEY, if it is set")
    parser.add_argument("--model", metavar="NAME", help="default: the first that the server lists")
    parser.add_argument("--system", metavar="TEXT", help="what the model should know before you begin")
    parser.add_argument("--temperature", metavar="F", type=float, default=0.7, help="default %(default)s")
    parser.add_argument("--max-tokens", metavar="N", type=int, help="of one answer; default: no limit but the model's")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    args = parser.parse_args(argv)
    return guarded(parser.prog, args.debug, lambda: chat(args))


def chat(args: argparse.Namespace) -> int:
    with suppress(ImportError):
        import readline  # noqa: F401  # arrow keys and history, where the system has it
    check_options(args)
    headers = {"Authorization": f"Bearer {args.api_key}"} if args.api_key else {}
    options = {"temperature": args.temperature, "max_tokens": args.max_tokens}
    with httpx.Client(base_url=args.url.rstrip("/").removesuffix("/v1"), headers=headers, timeout=TIMEOUT) as http:
        client = Client(http, args.model, options)
        print(
            f"{harmless(client.model)} at {args.url}. ^C stops an answer, /new begins anew, ^D leaves.", file=sys.stderr
        )
        talk(Conversation(client.ask, args.system), input, write_now)
    return DONE


def check_options(args: argparse.Namespace) -> None:
    """Raises ValueError for what no server could be asked."""
    check_integer("max_tokens", args.max_tokens, 1, optional=True)
    check_number("temperature", args.temperature, 0)
    try:
        url = httpx.URL(args.url)
    except httpx.InvalidURL as error:
        raise ValueError(f"--url {args.url}: {error}") from error
    if url.scheme not in ("http", "https") or not url.host:
        raise ValueError(f"--url must be like http://127.0.0.1:8000, not {args.url!r}")


def write_now(text: str) -> None:
    print(text, end="", flush=True)


if __name__ == "__main__":
    leave(main)
