"""Wishes and scores in plain Python, one row at a time: the slow judge beside `processors.py` and `logprobs.py`.

    processed(row, params, prompt, output, ends)    what is left of a row of logits before temperature
    check_scores(model, params, output)             the logprobs of an output, held against the model's own rows
    judge()                                         a few hundred rows with all kinds of wishes, in company

Written from vLLM's documentation, and without a line of thought in common with the code under test."""

import math
from random import Random

import pytest
import torch

from minipaged.batch import row_after
from minipaged.processors import process
from minipaged.sampling_params import SamplingParams
from minipaged.sequence import Sequence

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
    assert all(map(is_near, best, sorted(logprobs, reverse=True))), "the likeliest are there"
    for other, (logprob, rank) in ((other, (one.logprob, one.rank)) for other, one in entry.items()):
        assert is_near(logprob, logprobs[other])
        assert rank == 1 + sum(x > logprobs[other] for x in logprobs)


def is_near(one, other):
    return math.isclose(one, other, rel_tol=0, abs_tol=TOLERANCE)


def random_wishes(rng, vocab_size):
    """Any number of them at once."""
    token_ids = range(vocab_size)
    wishes = {
        "presence_penalty": rng.choice([-2, 0.5, 2]),
        "frequency_penalty": rng.choice([-0.5, 0.25, 2]),
        "repetition_penalty": rng.choice([0.5, 1.5, 4]),
        "logit_bias": {rng.choice(token_ids): rng.choice([-100, -1.5, 3, 200]) for _ in range(3)},
        "allowed_token_ids": rng.choices(token_ids, k=5),
        "min_tokens": rng.randint(0, 8),
        "stop_token_ids": rng.choices(token_ids, k=2),
    }
    return {name: wish for name, wish in wishes.items() if rng.random() < 0.4}


def check_wishes(seed, num_rows=5, vocab_size=12):
    """Rows with all kinds of wishes are processed together as each would be alone; the model's own stay as they are."""
    rng, rows, expected, ends = Random(seed), [], [], frozenset({0, 5})
    logits = 3 * torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(seed))
    before = logits.clone()
    for x in logits.tolist():
        prompt, output, drafts = ([rng.randrange(vocab_size) for _ in range(rng.randint(0, 8))] for _ in range(3))
        seq = Sequence("x", [1, *prompt], SamplingParams(**random_wishes(rng, vocab_size)), 99, ends)
        seq.tokens += output
        rows.append(row_after(seq, tuple(drafts)))
        expected.append(processed(x, seq.params, [1, *prompt], [*output, *drafts], ends))
    torch.testing.assert_close(process(logits, rows), torch.tensor(expected))
    assert torch.equal(logits, before)


def judge():
    for seed in range(100):
        check_wishes(seed)
