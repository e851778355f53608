"""Wishes and scores in plain Python, one row at a time: the slow judge beside `processors.py` and `logprobs.py`.

    processed(row, params, prompt, output, ends)    what is left of a row of logits before temperature
    check_scores(model, params, output)             the logprobs of an output, held against the model's own rows

Written from vLLM's documentation, and without a line of thought in common with the code under test."""

import math

import pytest

from minipaged.sampling_params import SamplingParams

TOLERANCE = 1e-4


def processed(row, params, prompt, output, ends):
    """Penalties, bias, allowed ids, min_tokens; `ends` are the EOS ids."""
    result = []
    for token, x in enumerate(row):
        if token in prompt or token in output:
            x = x / params.repetition_penalty if x > 0 else x * params.repetition_penalty
        x -= params.frequency_penalty * output.count(token)
        x -= params.presence_penalty * (token in output)
        x += (params.logit_bias or {}).get(token, 0.0)
        allowed = params.allowed_token_ids is None or token in params.allowed_token_ids
        early = len(output) < params.min_tokens and (token in ends or token in params.stop_token_ids)
        result.append(x if allowed and not early else -math.inf)
    return result


def cuts(params):
    """What is left of params once a row is processed."""
    return SamplingParams(
        temperature=params.temperature, top_p=params.top_p, top_k=params.top_k, min_p=params.min_p, seed=params.seed
    )


def log_softmax(row):
    best = max(row)
    total = math.log(sum(math.exp(x - best) for x in row))
    return [x - best - total for x in row]


def check_scores(model, params, output):
    """Each list is as long as its tokens, and each entry is right; nobody gets what they did not ask for."""
    prompt = output.prompt_token_ids
    for said in output.outputs:
        assert (said.logprobs is None) == (said.cumulative_logprob is None) == (params.logprobs is None)
        if params.logprobs is not None:
            check_entries(model, params.logprobs, prompt, said.token_ids, said.logprobs)
            own = [entry[token].logprob for token, entry in zip(said.token_ids, said.logprobs, strict=True)]
            assert said.cumulative_logprob == pytest.approx(sum(own))
    assert output.prompt_logprobs is None or params.prompt_logprobs is not None
    if params.prompt_logprobs is not None and output.outputs[0].token_ids:
        assert output.prompt_logprobs, "whoever speaks has read the prompt"
        assert output.prompt_logprobs[0] is None, "the first token follows nothing"
        check_entries(model, params.prompt_logprobs, prompt[:1], prompt[1:], output.prompt_logprobs[1:])


def check_entries(model, k, before, token_ids, entries):
    assert len(entries) == len(token_ids), "one entry a token"
    for i, (token_id, entry) in enumerate(zip(token_ids, entries, strict=True)):
        check_entry(log_softmax(model.logits([*before, *token_ids[:i]])), token_id, k, entry)


def check_entry(logprobs, token_id, k, entry):
    """The token itself first, then the k likeliest, in order; of equally likely ones any."""
    k = len(logprobs) if k == -1 else min(k, len(logprobs))
    assert next(iter(entry)) == token_id
    assert k <= len(entry) <= k + 1
    best = sorted((entry[other].logprob for other in entry), reverse=True)[:k]
    assert best == pytest.approx(sorted(logprobs, reverse=True)[:k], abs=TOLERANCE), "the likeliest are there"
    for other, (logprob, rank) in ((other, (one.logprob, one.rank)) for other, one in entry.items()):
        assert logprob == pytest.approx(logprobs[other], abs=TOLERANCE)
        assert rank == 1 + sum(x > logprobs[other] for x in logprobs)
