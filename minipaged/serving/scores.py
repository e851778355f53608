"""Logprobs in the two shapes that OpenAI has for them.

    completions   {"tokens": [" Oslo"], "token_logprobs": [-0.1], "top_logprobs": [{" Oslo": -0.1}], "text_offset": [7]}
    chat          {"content": [{"token": " Oslo", "logprob": -0.1, "bytes": [32, 79, ...], "top_logprobs": [...]}]}

Invariant: everything is JSON: what can never be said, minus infinity, is sent as -9999.0. (From level 08.)"""

from typing import Any

from ..detokenizer import BROKEN
from ..outputs import Logprob

LEAST = -9999.0
Scored = list[dict[int, Logprob] | None]


def finite(logprob: float) -> float:
    return max(logprob, LEAST)


def likeliest_first(scores: dict[int, Logprob]) -> list[Logprob]:
    return sorted(scores.values(), key=lambda score: -score.logprob)


def completion_scores(token_ids: list[int], texts: list[str], scored: Scored, offset: int) -> dict[str, Any]:
    """offset: of the first token's text in the choice's. A prompt's first token has no scores."""
    offsets, end = [], offset
    for text in texts:
        offsets.append(end)
        end += len(text)
    own = [scores and finite(scores[token_id].logprob) for token_id, scores in zip(token_ids, scored, strict=True)]
    return {
        "tokens": texts,
        "token_logprobs": own,
        "top_logprobs": [scores and tops(scores) for scores in scored],
        "text_offset": offsets,
    }


def tops(scores: dict[int, Logprob]) -> dict[str, float]:
    """The likeliest and the chosen; of two tokens with one text, the likelier."""
    found: dict[str, float] = {}
    for score in likeliest_first(scores):
        found.setdefault(score.decoded_token or "", finite(score.logprob))
    return found


def chat_scores(token_ids: list[int], scored: list[dict[int, Logprob]], num_top: int) -> dict[str, Any]:
    content = []
    for token_id, scores in zip(token_ids, scored, strict=True):
        others = [describe(score) for score in likeliest_first(scores)[:num_top]]
        content.append({**describe(scores[token_id]), "top_logprobs": others})
    return {"content": content, "refusal": None}


def describe(score: Logprob) -> dict[str, Any]:
    """bytes: None for a token that is no text by itself, like half a character."""
    text = score.decoded_token or ""
    return {
        "token": text,
        "logprob": finite(score.logprob),
        "bytes": None if BROKEN in text else list(text.encode()),
    }
