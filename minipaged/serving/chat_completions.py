"""Answers in the shape of /v1/chat/completions: a message when whole, deltas when streamed.

    whole    {"index": 0, "message": {"role": "assistant", "content": "Paris."}, "finish_reason": "stop", ...}
    chunks   delta {"role": "assistant", "content": ""}, {"content": "Par"}, {"content": "is."}, then {} with the reason

(From level 08.)"""

import time
from collections.abc import Iterator
from typing import Any

from ..outputs import RequestOutput
from .answers import News
from .protocol import ChatRequest
from .scores import chat_scores

Body = dict[str, Any]
ROLES = ("system", "developer", "user", "assistant", "tool", "function")  # the last two are refused in other words


class ChatShape:
    def __init__(self, request_id: str, model: str, asked: ChatRequest):
        self.head = {"id": f"chatcmpl-{request_id}", "created": int(time.time()), "model": model}
        self.num_top = (asked.top_logprobs or 0) if asked.logprobs else None

    def whole(self, news: list[News], outputs: dict[int, RequestOutput], usage: Body) -> Body:
        choices = [
            self.choice(one, {"message": {"role": "assistant", "content": one.text, "refusal": None}}) for one in news
        ]
        choices.sort(key=lambda choice: int(choice["index"]))
        return {**self.head, "object": "chat.completion", "choices": choices, "usage": usage}

    def chunks(self, news: News, output: RequestOutput) -> Iterator[Body]:
        if news.is_first:
            yield self.chunk(
                [
                    {
                        "index": news.index,
                        "delta": {"role": "assistant", "content": ""},
                        "logprobs": None,
                        "finish_reason": None,
                    }
                ]
            )
        delta = {"content": news.text} if news.text or self.num_top is not None else {}
        yield self.chunk([self.choice(news, {"delta": delta})])

    def usage_chunk(self, usage: Body) -> Body:
        return {**self.chunk([]), "usage": usage}

    def chunk(self, choices: list[Body]) -> Body:
        return {**self.head, "object": "chat.completion.chunk", "choices": choices}

    def choice(self, news: News, content: Body) -> Body:
        scored = None if news.logprobs is None else chat_scores(news.token_ids, news.logprobs, self.num_top or 0)
        end = {"finish_reason": news.finish_reason, "stop_reason": news.stop_reason}
        return {"index": news.index, **content, "logprobs": scored, **end}


def check_roles(messages: list[Body]) -> None:
    """A template would read any. Raises ValueError, naming the message, for a role that OpenAI's API has not."""
    for i, message in enumerate(messages):
        if isinstance(role := message.get("role"), str) and role not in ROLES:
            raise ValueError(f"messages[{i}].role must be one of {', '.join(ROLES[:4])}, not {role!r:.40}")
