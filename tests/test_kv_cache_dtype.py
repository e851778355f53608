"""A narrow cache changes nothing but numbers: every level says what level 01 says with it.

    level 01 with int8     ->  the answers, as far as their best logit leads clearly
    all others with int8   ->  the same, whatever gives way, is cut, found again or guessed

What nobody wrote is poisoned: scales of NaN. A row is rounded by itself, so it is the same whenever it is written; but
where two numbers are the last bit apart, rounding may take them to different whole numbers, so a lead must be larger
than in float32."""

from functools import cache

import pytest
import torch

from levels import load
from minipaged.config import EngineConfig
from minipaged.loading import load_model
from minipaged.sampling_params import SamplingParams

from .drafters import DRAFTERS
from .test_identity import GUESSING, NUM_TOKENS, PROMPTS, WAYS, find_prompt
from .tiny import tiny_model

LEAD = 0.05
PARAMS = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=2)
RUNS = [
    (2, "preempted"),
    (3, "chunked"),
    (3, "chunked and preempted"),
    (4, "chunked and preempted"),
    (4, "two choices"),
    *((5, f"{way} + {drafter}") for way in ("ample", "preempted") for drafter in ("ngram", "wrong", "draft model")),
    (6, "chunked"),
]
CASES = [*(("int8", *run) for run in RUNS), *(("fp8", *run) for run in RUNS if run[1] in ("preempted", "two choices"))]


@pytest.fixture(scope="module")
def serve(tmp_path_factory):
    """serve(kept): a model whose cache is kept so, and what level 01 says with it, as far as it is certain."""

    @cache
    def serve(kept):
        folder = tiny_model(tmp_path_factory.mktemp(kept), "qwen3")
        model = load_model(EngineConfig(model=str(folder), kv_cache_dtype=kept))
        engine = load(1).Engine(EngineConfig(**WAYS["ample"]), model)
        poison(engine.kv_cache)
        certain = [said.token_ids[: lead(said)] for said in answers(engine)]
        assert sum(map(len, certain)) > 0.7 * NUM_TOKENS * len(PROMPTS), "too many near-ties to prove anything"
        return model, certain

    return serve


def poison(kv_cache):
    kv_cache.scales.fill_(torch.nan)
    kv_cache.data.view(torch.int8).fill_(127)


def lead(said):
    """How many tokens come before the first whose best logprob does not lead clearly."""
    for i, scores in enumerate(said.logprobs):
        best, second, *_ = sorted((score.logprob for score in scores.values()), reverse=True)
        if best - second < LEAD:
            return i
    return len(said.token_ids)


def answers(engine):
    ids = [engine.add_request(prompt, PARAMS) for prompt in PROMPTS]
    said = {}
    while engine.has_unfinished_requests():
        said.update({output.request_id: output.outputs[0] for output in engine.step()})
        engine.check_integrity()
    return [said[i] for i in ids]


@pytest.mark.parametrize(("kept", "level", "way"), CASES, ids=["-".join(map(str, case)) for case in CASES])
def test_every_level_says_what_level_01_says(serve, kept, level, way):
    model, certain = serve(kept)
    engine = load(level).Engine(EngineConfig(**(WAYS | GUESSING)[way]), model)
    assert engine.config.kv_cache_dtype == kept
    poison(engine.executor.worker.kv_cache if level > 5 else engine.kv_cache)
    if level == 5:
        engine.drafter = DRAFTERS[way.split(" + ")[1]](engine, lambda seq: certain[find_prompt(seq)])
    for _ in range(2 if level == 4 else 1):  # the second time, everything has been computed before
        for said, expected in zip(answers(engine), certain, strict=True):
            assert said.token_ids[: len(expected)] == expected
    assert any(step.preempted for step in engine.trace.steps) or level == 5 or "preempted" not in way
    assert level != 4 or any(any(step.cached_tokens.values()) for step in engine.trace.steps)
