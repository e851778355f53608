"""The sampling kernel draws what plain tensors draw: row by row, and for whole engines, alone and in company."""

from collections import Counter
from random import Random

import pytest
import torch

from levels import load
from minipaged import sampling, triton_sampling
from minipaged.batch import NO_TOKEN, Row, row_after
from minipaged.config import EngineConfig
from minipaged.loading import load_model
from minipaged.sampling_params import SamplingParams
from minipaged.sequence import Sequence
from tests.kernels.guard import DEVICE

from .plain import random_wishes
from .tiny import tiny_model

VOCAB_SIZE = 45  # two words of bits, the second not full
DRAWS = [
    {"temperature": 0},
    {"temperature": 0.8},
    {"temperature": 1.5, "top_k": 5},
    {"top_p": 0.8, "min_p": 0.05},
    {"top_k": 10_000_000},
]


def random_row(rng):
    seq = Sequence(
        "x",
        rng.choices(range(VOCAB_SIZE), k=rng.randint(1, 9)),
        SamplingParams(**rng.choice(DRAWS), **random_wishes(rng, VOCAB_SIZE)),
        max_len=99,
        eos_token_ids=frozenset({0, 5}),
        seed=rng.getrandbits(64) - 2**63,
    )
    seq.tokens += rng.choices(range(VOCAB_SIZE), k=rng.randint(0, 9))
    permitted = None if rng.random() < 0.7 else bytes(rng.randrange(256) for _ in range(8))
    return row_after(seq, tuple(rng.choices(range(VOCAB_SIZE), k=rng.randint(0, 2))))._replace(permitted=permitted)


@pytest.mark.parametrize("seed", range(6))
def test_a_row_gets_the_same_token_whatever_it_wishes(seed):
    rng = Random(seed)
    rows = [random_row(rng) for _ in range(12)]
    logits = 3 * torch.randn(len(rows) + 2, VOCAB_SIZE, generator=torch.Generator().manual_seed(seed)).to(DEVICE)
    logits[3] = torch.nan
    before = logits.clone()
    tokens = triton_sampling.sample(logits, rows)
    assert tokens == sampling.sample(logits, rows)
    assert tokens[3] == NO_TOKEN
    assert torch.equal(logits.nan_to_num(7), before.nan_to_num(7)), "the model's own logits stay as they are"


EXTREMES = [
    {"temperature": 1e300},
    {"temperature": 1e-5},
    {"temperature": 1e-310},
    {"repetition_penalty": 1e-300},
    {"repetition_penalty": 1e300},
    {"repetition_penalty": 1e-300, "temperature": 1e-5},
    {"repetition_penalty": 1e300, "temperature": 1e300},
    {"frequency_penalty": 5e-324, "presence_penalty": -5e-324},
    {"logit_bias": {3: 1e308, 4: -1e308, 5: 5e-324}},
    {"min_p": 5e-324},
    {"min_p": 1e-40},
    {"min_p": 1.0},
    {"top_p": 5e-324},
    {"top_p": 1e-40, "temperature": 1e300},
    {"top_p": 1 - 1e-16, "top_k": 10**30},
]


@pytest.mark.parametrize("extreme", EXTREMES, ids=str)
def test_no_number_is_too_large_or_too_small(extreme):
    """Beside masks, whose -inf times 0 or by infinity is no number."""
    generator, rows = torch.Generator().manual_seed(1), []
    for i, more in enumerate([{}, {"min_tokens": 9}, {"allowed_token_ids": [1, 2, 3, 7, 11]}, {}]):
        seq = Sequence("x", [1, 2, 3], SamplingParams(**more, **extreme), 99, frozenset({0, 5}), seed=i)
        seq.tokens += [3, 7, 11]
        rows.append(row_after(seq)._replace(permitted=b"\xee\x0e\0\0\0\0\0\0" if i == 3 else None))
    logits = 9 * torch.randn(len(rows), VOCAB_SIZE, generator=generator).to(DEVICE)
    logits[:, 3], logits[:, 7], logits[:, 11] = 30.0, -30.0, 0.0
    tokens = sampling.sample(logits, rows)
    assert tokens == triton_sampling.sample(logits, rows)
    assert NO_TOKEN not in tokens
    assert not {0, 5} & {tokens[1]}
    assert tokens[2] in (1, 2, 3, 7, 11)
    assert tokens[3] in (1, 2, 3, 5, 6, 7, 9, 10, 11)


def test_at_the_highest_temperature_every_token_is_as_likely():
    rows = [Row(SamplingParams(temperature=1e300, min_tokens=1), seed, 4) for seed in range(400)]
    logits = torch.linspace(-900, 900, 8).repeat(len(rows), 1)
    counts = Counter(sampling.sample(logits, rows))
    assert set(counts) == set(range(8))
    assert max(counts.values()) < 80


def test_rows_that_wish_nothing_pack_nothing():
    rows = [Row(SamplingParams(), 1, 5), Row(SamplingParams(temperature=0), 2, 5)]
    assert triton_sampling.pack_edits(rows, torch.device(DEVICE)) is None
    assert triton_sampling.pack_bits(rows, VOCAB_SIZE, torch.device(DEVICE)) is None
    assert triton_sampling.sample(torch.empty(0, VOCAB_SIZE, device=DEVICE), []) == []


COMMON = {"max_tokens": 6, "ignore_eos": True}
REQUESTS = [
    ([3, 14, 15, 92, 65, 35, 89], {"temperature": 0}),
    ([7, 9], {"temperature": 0.9, "seed": 5}),
    ([7, 9, 7, 9], {"seed": 6, "top_k": 20, "top_p": 0.9, "repetition_penalty": 1.3, "frequency_penalty": 0.5}),
    ([2, 4, 8], {"seed": 7, "logit_bias": {3: 9.0, 4: 8.5}, "presence_penalty": 2.0, "min_p": 0.02}),
    ([2, 4, 8, 1], {"temperature": 0, "allowed_token_ids": [5, 6, 7], "min_tokens": 3, "stop_token_ids": [6]}),
]


def serve(engine, requests):
    ids = [engine.add_request(prompt, SamplingParams(**COMMON, **wishes)) for prompt, wishes in requests]
    said = {}
    while engine.has_unfinished_requests():
        said |= {output.request_id: output.outputs[0].token_ids for output in engine.step()}
    return [said[i] for i in ids]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """The same weights with either backend."""
    folder = str(tiny_model(tmp_path_factory.mktemp("tiny"), num_hidden_layers=1))
    configs = [EngineConfig(model=folder, dtype="float32", attention_backend=name) for name in ("torch", "triton")]
    return [load_model(config) for config in configs]


@pytest.mark.parametrize("level", [2, 5])
def test_an_engine_says_the_same_with_either_backend_alone_and_in_company(level, models):
    sizes = {"num_blocks": 40, "block_size": 4, "max_model_len": 32}
    guessing = {"num_speculative_tokens": 2, "prompt_lookup_min": 1} if level == 5 else {}
    plain, fast = (load(level).Engine(EngineConfig(**sizes, **guessing), model) for model in models)
    assert (plain.config.attention_backend, fast.config.attention_backend) == ("torch", "triton")
    said = serve(plain, REQUESTS)
    assert serve(fast, REQUESTS) == said
    assert [serve(fast, [request])[0] for request in REQUESTS[1:3]] == said[1:3]
    if guessing:
        assert any(step.accepted_tokens for step in fast.trace.steps), "some guesses were right"


def test_the_backend_chooses_who_draws(models):
    assert [model.sample for model in models] == [sampling.sample, triton_sampling.sample]
