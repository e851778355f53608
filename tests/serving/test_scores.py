"""Logprobs are JSON, and the likeliest is found whatever the tokens are called."""

import json
import math

from minipaged.outputs import Logprob
from minipaged.serving.scores import LEAST, chat_scores, completion_scores


def test_what_can_never_be_said_is_a_finite_number() -> None:
    scores = {1: Logprob(0.0, 1, "a"), 2: Logprob(-math.inf, 2, "b")}
    found = completion_scores([2], ["b"], [scores], 0)
    assert found["token_logprobs"] == [LEAST]
    assert found["top_logprobs"] == [{"a": 0.0, "b": LEAST}]
    json.dumps(found, allow_nan=False)
    json.dumps(chat_scores([2], [scores], 2), allow_nan=False)


def test_of_two_tokens_with_one_text_the_likelier_is_shown() -> None:
    scores = {1: Logprob(-3.0, 2, "�"), 2: Logprob(-1.0, 1, "�")}
    assert completion_scores([1], ["�"], [scores], 0)["top_logprobs"] == [{"�": -1.0}]


def test_half_a_character_has_no_bytes() -> None:
    content = chat_scores([1, 2], [{1: Logprob(-1.0, 1, "�")}, {2: Logprob(-1.0, 1, "é")}], 1)["content"]
    assert [token["bytes"] for token in content] == [None, [195, 169]]


def test_a_prompts_first_token_has_none() -> None:
    found = completion_scores([1, 2], ["ab", "c"], [None, {2: Logprob(-1.0, 1, "c")}], 5)
    assert found["token_logprobs"] == [None, -1.0]
    assert found["text_offset"] == [5, 7]
