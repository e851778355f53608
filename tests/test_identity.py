"""Every level, whatever its memory and budget, gives transformers' greedy tokens, on real models of every family.

    01    ample                                           rows hold everything
    02    ample, preempted                                a pool in which the newest gives way
    03    ample, preempted, chunked, both at once         a budget that no prompt fits
    04    the same, and again                             everything has been computed before
    05    the same, with every drafter                    that knows nothing, some, all, or only wrong words
    all   two choices, with ample memory or preempted     every prompt asked for two answers; 04 shares its blocks

Memory is poisoned with NaN before anything runs, so whoever reads what nobody wrote says nothing at all. Where the best
logit leads by less than MARGIN, rounding may decide: such an answer is compared up to there, and few are."""

from functools import cache
from random import Random

import pytest
import torch

from levels import load
from minipaged.config import EngineConfig
from minipaged.loading import load_model
from minipaged.sampling_params import SamplingParams

from .drafters import DRAFTERS
from .tiny import KINDS, ROPES, VOCAB_SIZE, greedy_tokens, reference_logits, tiny_model

MARGIN = 1e-3
NUM_TOKENS = 10
AMPLE = {"num_blocks": 128, "block_size": 4, "max_model_len": 64}
WAYS = {
    "ample": AMPLE,
    "preempted": {**AMPLE, "num_blocks": 10},
    "chunked": {**AMPLE, "max_num_batched_tokens": 5, "long_prefill_token_threshold": 3},
    "chunked and preempted": {**AMPLE, "num_blocks": 12, "max_num_batched_tokens": 5, "block_size": 3},
    "two choices": AMPLE,
    "two choices, preempted": {**AMPLE, "num_blocks": 10},
}
GUESSING = {f"{way} + {drafter}": {**WAYS[way], "num_speculative_tokens": 3} for way in WAYS for drafter in DRAFTERS}
RUNS = [
    *((1, way) for way in ("ample", "two choices")),
    *((2, way) for way in ("ample", "preempted", "two choices", "two choices, preempted")),
    *((level, way) for level in (3, 4) for way in WAYS),
    *((5, way) for way in GUESSING),
]
OTHERS_GUESSING = ("ample + random", "preempted + wrong", "chunked + draft model", "chunked and preempted + ngram")
MODELS = [("llama", "llama3"), ("mistral", "default"), ("qwen2", "yarn"), ("qwen3", "linear")]
CASES = [
    (kind, rope, level, way)
    for kind, rope in MODELS
    for level, way in RUNS
    if kind == "llama" or level < 5 or way in OTHERS_GUESSING  # who guesses how is the same for all families
]


def make_prompts():
    rng = Random(3)
    return [[rng.randrange(VOCAB_SIZE) for _ in range(n)] for n in (9, 2, 24, 1, 15)]


PROMPTS = make_prompts()


@pytest.fixture(scope="module")
def serve(tmp_path_factory):
    """serve(kind, rope): the model in our hands, and how each prompt is to be answered."""

    @cache
    def serve(kind, rope):
        folder = tiny_model(tmp_path_factory.mktemp(f"{kind}_{rope}"), kind, rope=rope)
        answers = greedy_tokens(folder, PROMPTS, NUM_TOKENS)
        certain = [
            answer[: num_certain(reference_logits(folder, prompt + answer), len(prompt))]
            for prompt, answer in zip(PROMPTS, answers, strict=True)
        ]
        assert sum(map(len, certain)) > 0.8 * NUM_TOKENS * len(PROMPTS), "too many near-ties to prove anything"
        return load_model(EngineConfig(model=str(folder))), certain

    return serve


def num_certain(logits, num_prompt_tokens):
    """How many of an answer's tokens lead clearly, before the first that does not."""
    best = logits[num_prompt_tokens - 1 : -1].topk(2).values
    unclear = (best[:, 0] - best[:, 1] < MARGIN).nonzero()
    return int(unclear[0]) if len(unclear) else NUM_TOKENS


def test_every_family_and_every_rope_is_among_them():
    assert ({kind for kind, _ in MODELS}, {rope for _, rope in MODELS}) == (set(KINDS), set(ROPES))


@pytest.mark.parametrize(("kind", "rope", "level", "way"), CASES, ids=["-".join(map(str, case)) for case in CASES])
def test_every_level_gives_transformers_tokens(serve, kind, rope, level, way):
    model, certain = serve(kind, rope)
    engine = load(level).Engine(EngineConfig(**(WAYS | GUESSING)[way]), model)
    engine.kv_cache.data.fill_(torch.nan)
    num_choices = 2 if "two choices" in way else 1
    if level == 5:
        engine.drafter = DRAFTERS[way.split(" + ")[1]](engine, lambda seq: certain[find_prompt(seq)])
        if "draft model" in way:
            engine.drafter.kv_cache.data.fill_(torch.nan)
    for again in [False, True] if level > 3 else [False]:
        check_answers(engine, certain, num_choices)
        found = any(any(step.cached_tokens.values()) for step in engine.trace.steps)
        assert found or "preempted" in way or not (again or (level > 3 and num_choices > 1))  # a tight pool forgets
    check_steps(level, way, engine.trace.steps, num_choices)
    if level == 5 and "chunked" not in way:
        check_guesses(way, engine.trace.steps)


def find_prompt(seq):
    return PROMPTS.index(seq.tokens[: seq.num_prompt_tokens])


def check_answers(engine, certain, num_choices):
    params = SamplingParams(n=num_choices, temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
    ids = [engine.add_request(prompt, params) for prompt in PROMPTS]
    said = {}
    while engine.has_unfinished_requests():
        said.update({output.request_id: [choice.token_ids for choice in output.outputs] for output in engine.step()})
        engine.check_integrity()
    for i, answer in zip(ids, certain, strict=True):
        assert [token_ids[: len(answer)] for token_ids in said[i]] == [answer] * num_choices
        assert [len(token_ids) for token_ids in said[i]] == [NUM_TOKENS] * num_choices


def check_steps(level, way, steps, num_choices):
    gave_way = any(step.preempted for step in steps)
    assert gave_way == ("preempted" in way) or (
        level == 5 and not gave_way
    )  # whoever is done sooner is in nobody's way
    assert any(len(step.num_scheduled_tokens) * num_choices < step.num_running for step in steps) <= ("chunked" in way)
    assert (max(max(step.num_scheduled_tokens.values()) for step in steps) <= 5) == ("chunked" in way)


def check_guesses(way, steps):
    """The test would prove little if nobody had guessed, or nobody wrongly."""
    drafted, right = (
        sum(sum(getattr(step, f"{kind}_tokens").values()) for step in steps) for kind in ("draft", "accepted")
    )
    expected = {"none": (0, 0), "wrong": (1, 0), "draft model": (1, 1), "perfect": (1, 1)}
    assert (min(drafted, 1), min(right, 1)) == expected.get(way.split(" + ")[1], (1, min(right, 1)))
    assert right == drafted or "draft model" not in way
