"""POST /v1/completions: text in, text out."""

import httpx
import pytest

from .asking import COMPLETIONS, PROMPT, complete, events, ok

COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens")
NULL = ("max_tokens", "n", "temperature", "top_p", "stop", "logprobs", "seed", "user", "logit_bias", "stream", "echo")


def test_the_shape_of_an_answer(http: httpx.Client) -> None:
    answer = ok(complete(http))
    assert answer["object"] == "text_completion"
    assert answer["id"].startswith("cmpl-")
    assert isinstance(answer["created"], int)
    [choice] = answer["choices"]
    assert choice["index"] == 0
    assert isinstance(choice["text"], str)
    assert choice["logprobs"] is None
    assert choice["finish_reason"] in ("stop", "length")
    usage = answer["usage"]
    assert usage["prompt_tokens"] > 0
    assert 0 < usage["completion_tokens"] <= 8
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def test_usage_counts_every_token_of_every_choice(http: httpx.Client) -> None:
    usage = ok(complete(http, n=3, ignore_eos=True))["usage"]
    assert usage["completion_tokens"] == 24
    assert usage["prompt_tokens"] == ok(complete(http))["usage"]["prompt_tokens"], "a prompt counts once"


def test_cached_tokens_are_told(http: httpx.Client, ours: None) -> None:
    prompt = "all of this has been here before, word by word by word"
    ok(complete(http, prompt=prompt))
    usage = ok(complete(http, prompt=prompt))["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == (usage["prompt_tokens"] - 1) // 16 * 16 > 0


def test_a_salt_keeps_strangers_apart(http: httpx.Client, ours: None) -> None:
    prompt = "nobody shall learn by the clock that this was asked before"
    for salt, expected in (("a", 0), ("b", 0), ("a", (len(prompt) - 1) // 16 * 16)):
        usage = ok(complete(http, prompt=prompt, cache_salt=salt))["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == expected


@pytest.mark.parametrize("prompt", [[72, 105], ["Hi"], [[72, 105]], ["Hi", "Ho"], [[72], [105, 3]]])
def test_a_prompt_is_text_or_tokens_or_a_list_of_either(http: httpx.Client, prompt: object) -> None:
    number = len(prompt) if isinstance(prompt, list) and not isinstance(prompt[0], int) else 1
    answer = ok(complete(http, prompt=prompt))
    assert [choice["index"] for choice in answer["choices"]] == list(range(number))


def test_answers_to_several_prompts_are_those_to_each(http: httpx.Client) -> None:
    prompts = ["one", "two and", "three"]
    alone = [ok(complete(http, prompt=prompt))["choices"][0]["text"] for prompt in prompts]
    together = ok(complete(http, prompt=prompts, n=2))["choices"]
    assert [choice["text"] for choice in together] == [text for text in alone for _ in range(2)]


def test_the_pieces_of_a_stream_join_to_the_whole(http: httpx.Client) -> None:
    whole = ok(complete(http, max_tokens=24))["choices"][0]
    chunks = events(complete(http, max_tokens=24, stream=True))
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == whole["text"]
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + [whole["finish_reason"]]


def test_streams_of_several_choices_can_be_told_apart(http: httpx.Client) -> None:
    body = {"prompt": ["one", "two"], "n": 2, "temperature": 0.9, "seed": 5, "max_tokens": 12}
    whole = [choice["text"] for choice in ok(complete(http, **body))["choices"]]
    texts = [""] * 4
    for chunk in events(complete(http, **body, stream=True)):
        for choice in chunk["choices"]:
            texts[choice["index"]] += choice["text"]
    assert texts == whole


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}])
def test_usage_is_not_streamed_unless_asked_for(http: httpx.Client, options: object) -> None:
    chunks = events(complete(http, stream=True, stream_options=options))
    assert all(chunk["choices"] and chunk.get("usage") is None for chunk in chunks)


def test_usage_is_the_last_chunk_of_all_and_has_no_choices(http: httpx.Client) -> None:
    *others, last = events(complete(http, stream=True, stream_options={"include_usage": True}))
    assert all(chunk["choices"] and chunk.get("usage") is None for chunk in others)
    assert last["choices"] == []
    again = ok(complete(http))["usage"]
    assert [last["usage"][name] for name in COUNTS] == [again[name] for name in COUNTS]


def test_echo_puts_the_prompt_in_front(http: httpx.Client) -> None:
    text = ok(complete(http))["choices"][0]["text"]
    assert ok(complete(http, echo=True))["choices"][0]["text"] == PROMPT + text
    chunks = events(complete(http, echo=True, stream=True))
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == PROMPT + text


def test_logprobs_name_each_token_and_the_likeliest(http: httpx.Client) -> None:
    choice = ok(complete(http, logprobs=3, max_tokens=5, ignore_eos=True))["choices"][0]
    scores = choice["logprobs"]
    assert {len(values) for values in scores.values()} == {5}
    assert scores["text_offset"][0] == 0
    for token, logprob, top in zip(scores["tokens"], scores["token_logprobs"], scores["top_logprobs"], strict=True):
        assert top[token] == logprob == max(top.values()), "greedy says the likeliest"
        assert logprob <= 0


def test_logprobs_of_an_echo_begin_with_the_prompt(http: httpx.Client, ours: None) -> None:
    scores = ok(complete(http, logprobs=1, echo=True, max_tokens=2, ignore_eos=True))["choices"][0]["logprobs"]
    assert len(scores["tokens"]) == len(PROMPT) + 2
    assert scores["token_logprobs"][0] is scores["top_logprobs"][0] is None
    assert all(logprob is not None for logprob in scores["token_logprobs"][1:])
    assert "".join(scores["tokens"][: len(PROMPT)]) == PROMPT
    assert scores["text_offset"][: len(PROMPT)] == list(range(len(PROMPT)))


def test_streamed_logprobs_join_to_those_of_the_whole(http: httpx.Client) -> None:
    whole = ok(complete(http, logprobs=2, max_tokens=12))["choices"][0]["logprobs"]
    joined: dict[str, list[object]] = {name: [] for name in whole}
    for chunk in events(complete(http, logprobs=2, max_tokens=12, stream=True)):
        for name, values in (chunk["choices"][0]["logprobs"] or {}).items():
            joined[name] += values
    assert joined["tokens"] == whole["tokens"]
    assert joined["text_offset"] == whole["text_offset"]
    assert joined["token_logprobs"] == pytest.approx(whole["token_logprobs"], abs=1e-4)


def test_a_seed_repeats_itself(http: httpx.Client) -> None:
    texts = [ok(complete(http, temperature=1, seed=seed))["choices"][0]["text"] for seed in (7, 7, 8)]
    assert texts[0] == texts[1] != texts[2]


def test_a_stop_string_ends_the_text_and_is_not_in_it(http: httpx.Client) -> None:
    text = ok(complete(http, max_tokens=24))["choices"][0]["text"]
    stop = text[4:6]
    for body in ({"stop": stop}, {"stop": [stop, "never there"]}):
        choice = ok(complete(http, max_tokens=24, **body))["choices"][0]
        assert choice["text"] == text[: text.index(stop)]
        assert choice["finish_reason"] == "stop"
        streamed = events(complete(http, max_tokens=24, stream=True, **body))
        assert "".join(chunk["choices"][0]["text"] for chunk in streamed) == choice["text"]


def test_a_bias_forces_a_token(http: httpx.Client, ours: None) -> None:
    choice = ok(complete(http, logit_bias={"40": 100}, max_tokens=3))["choices"][0]
    assert choice["text"] == ok(http.post("/detokenize", json={"tokens": [40]}))["prompt"] * 3


def test_other_fields_of_ours_reach_the_sampler(http: httpx.Client, ours: None) -> None:
    body = {"allowed_token_ids": [40, 41], "temperature": 2, "max_tokens": 12, "min_tokens": 2, "min_p": 0.1}
    body |= {"top_k": 2, "repetition_penalty": 1.1, "priority": -1, "stop_token_ids": [41], "ignore_eos": True}
    choice = ok(complete(http, **body))["choices"][0]
    letters = {ok(http.post("/detokenize", json={"tokens": [token]}))["prompt"] for token in (40, 41)}
    assert set(choice["text"]) <= letters
    assert (choice["finish_reason"], choice["stop_reason"]) in (("stop", 41), ("length", None))


def test_null_is_the_default(http: httpx.Client) -> None:
    answer = ok(http.post(COMPLETIONS, json={"prompt": PROMPT, "ignore_eos": True, **dict.fromkeys(NULL)}))
    assert answer["usage"]["completion_tokens"] == 16


def test_the_newer_name_of_max_tokens_wins(http: httpx.Client, ours: None) -> None:
    for body, expected in (({"max_completion_tokens": 3, "max_tokens": None}, 3), ({"max_completion_tokens": 3}, 3)):
        assert ok(complete(http, ignore_eos=True, **body))["usage"]["completion_tokens"] == expected


def test_fields_that_nobody_knows_are_ignored(http: httpx.Client) -> None:
    assert ok(complete(http, colour="red", metadata={"a": [1]}))["choices"]


def test_what_can_never_be_said_is_still_a_number(http: httpx.Client) -> None:
    """-inf is no JSON."""
    for body in ({"echo": True, "logprobs": 1, "top_k": 1}, {"logprobs": 5, "logit_bias": {"40": -100}}):
        scores = ok(complete(http, **body))["choices"][0]["logprobs"]
        assert all(isinstance(x, float) for x in scores["token_logprobs"][1:])
