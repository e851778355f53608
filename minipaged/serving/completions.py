"""Answers in the shape of /v1/completions, whole or in chunks; a chunk and a whole differ in how much they hold.

    {"id": "cmpl-...", "object": "text_completion", "created": ..., "model": "...",
     "choices": [{"index": 0, "text": " Paris", "logprobs": null, "finish_reason": "stop", "stop_reason": null}]}

With echo a choice begins with its prompt, in its text and in its logprobs. (From level 08.)"""

import time
from collections.abc import Iterator
from typing import Any

from ..detokenizer import Detokenizer
from ..outputs import RequestOutput
from .answers import News
from .protocol import CompletionRequest
from .scores import Scored, completion_scores

Body = dict[str, Any]


class CompletionShape:
    """echoed: the prompts' texts, or nothing."""

    def __init__(self, request_id: str, model: str, asked: CompletionRequest, decode: Detokenizer, echoed: list[str]):
        self.head: Body = {"id": f"cmpl-{request_id}", "object": "text_completion"}
        self.head |= {"created": int(time.time()), "model": model}
        self.decode, self.echoed, self.n, self.num_top = decode, echoed, asked.n or 1, asked.logprobs
        self.ends: dict[int, int] = {}  # choice -> the end of its tokens' texts, for text_offset

    def whole(self, news: list[News], outputs: dict[int, RequestOutput], usage: Body) -> Body:
        choices = [self.choice(one, outputs[one.index // self.n]) for one in news]
        return {**self.head, "choices": sorted(choices, key=lambda choice: int(choice["index"])), "usage": usage}

    def chunks(self, news: News, output: RequestOutput) -> Iterator[Body]:
        yield {**self.head, "choices": [self.choice(news, output)]}

    def usage_chunk(self, usage: Body) -> Body:
        return {**self.head, "choices": [], "usage": usage}

    def choice(self, news: News, output: RequestOutput) -> Body:
        echoes = bool(self.echoed) and news.is_first
        prompt = self.echoed[news.index // self.n] if echoes else ""
        return {
            "index": news.index,
            "text": prompt + news.text,
            "logprobs": None if self.num_top is None else self.scores(news, output, echoes),
            "finish_reason": news.finish_reason,
            "stop_reason": news.stop_reason,
        }

    def scores(self, news: News, output: RequestOutput, echoes: bool) -> Body:
        assert news.logprobs is not None, "logprobs were asked for"
        token_ids, scored = news.token_ids, Scored(news.logprobs)
        if echoes:
            assert output.prompt_logprobs is not None, "the prompt's logprobs were asked for"
            token_ids, scored = [*output.prompt_token_ids, *token_ids], [*output.prompt_logprobs, *scored]
        texts = [self.decode([token_id], skip_special_tokens=False) for token_id in token_ids]
        offset = self.ends.get(news.index, 0)
        self.ends[news.index] = offset + sum(map(len, texts))
        return completion_scores(token_ids, texts, scored, offset)
