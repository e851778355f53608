"""A draft model reads what its target reads; where the target has keys, it has them too."""

from dataclasses import replace

import pytest
import torch

from levels import load
from minipaged.config import EngineConfig
from minipaged.loading import load_model
from minipaged.sampling_params import SamplingParams
from minipaged.speculative.draft_model import DraftModel

from ..drafters import drafting_with
from ..fake_model import FakeModel
from ..tiny import tiny_model

FIELDS = {"num_blocks": 32, "block_size": 4, "max_model_len": 64, "num_speculative_tokens": 3}
CHOSEN = {**FIELDS, "speculative_method": "draft_model"}


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return str(tiny_model(tmp_path_factory.mktemp("target"), "llama"))


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    return str(tiny_model(tmp_path_factory.mktemp("other"), "qwen2"))


def finish(engine, params, *prompts):
    ids = [engine.add_request(prompt, params) for prompt in prompts]
    last = {}
    while engine.has_unfinished_requests():
        last.update({output.request_id: output.outputs[0].token_ids for output in engine.step()})
        engine.check_integrity()
    return [last[i] for i in ids]


GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
PROMPTS = ([5, 6, 7], [8, 9, 10, 11, 12, 13], [5, 6, 7, 8, 9])


@pytest.mark.parametrize("temperature", [0, 1.0])
def test_a_model_that_drafts_for_itself_is_always_right(target, temperature):
    config = EngineConfig(model=target, draft_model=target, **CHOSEN)
    model = load_model(config)
    assert model.drafts[target].config.model == target
    engine = load(5).Engine(config, model)
    assert isinstance(engine.drafter, DraftModel)
    engine.kv_cache.data.fill_(torch.nan)
    engine.drafter.kv_cache.data.fill_(torch.nan)
    finish(engine, SamplingParams(temperature=temperature, seed=3, max_tokens=12, ignore_eos=True), *PROMPTS)
    steps = engine.trace.steps
    assert len(steps) == 3, "twelve tokens, four a forward"
    assert all(step.accepted_tokens == step.draft_tokens for step in steps)


def test_another_family_may_draft_and_the_words_stay_the_target_s(target, other):
    plain = load(4).Engine(EngineConfig(model=target, num_blocks=32, block_size=4, max_model_len=64))
    engine = load(5).Engine(EngineConfig(model=target, draft_model=other, **CHOSEN))
    assert finish(engine, GREEDY, *PROMPTS) == finish(plain, GREEDY, *PROMPTS)
    assert any(step.accepted_tokens != step.draft_tokens for step in engine.trace.steps)
    assert engine.model.forward_s > engine.model.drafts[other].forward_s > 0


def test_one_model_may_have_several_and_each_engine_counts_the_memory_of_its_own(target, other):
    first = EngineConfig(model=target, draft_model=target, **CHOSEN)
    model = load_model(first)
    engines = [load(5).Engine(config, model) for config in (first, replace(first, draft_model=other))]
    assert [engine.drafter.model.config.model for engine in engines] == [target, other]
    assert list(model.drafts) == [target, other]
    assert finish(engines[0], GREEDY, *PROMPTS) == finish(engines[1], GREEDY, *PROMPTS)
    roomy = replace(first, num_blocks=None, max_num_seqs=10**6)
    alone, *both = (
        model.resolve(config)
        for config in (
            EngineConfig(max_model_len=64, block_size=4, max_num_seqs=10**6),
            roomy,
            replace(roomy, draft_model=other),
        )
    )
    assert [config.num_blocks for config in both] == [alone.num_blocks // 2] * 2


def test_a_second_prompt_finds_the_draft_model_s_keys_as_well():
    engine = load(5).Engine(EngineConfig(**FIELDS), FakeModel())
    engine.drafter = drafting_with(lambda engine: engine.model)(engine, None)
    (first,) = finish(engine, GREEDY, [5, 6, 7, 8, 9])
    finish(engine, GREEDY, [5, 6, 7, 8, 9, *first])
    assert any(any(step.cached_tokens.values()) for step in engine.trace.steps)
    assert all(step.accepted_tokens == step.draft_tokens for step in engine.trace.steps)


def test_a_draft_model_that_says_nothing_is_no_guess():
    engine = load(5).Engine(EngineConfig(**FIELDS), FakeModel())
    mute = FakeModel(unlucky=frozenset(range(16)))
    engine.drafter = DraftModel(mute, 32, 4, engine.drafter.length)
    (said,) = finish(engine, GREEDY, [5, 6, 7])
    assert len(said) == 12
    assert not any(step.draft_tokens for step in engine.trace.steps)


def test_a_draft_model_s_memory_is_in_the_count(target):
    options = {"num_speculative_tokens": 3, "speculative_method": "draft_model", "draft_model": target}
    alone, both = (load_model(EngineConfig(model=target, max_num_seqs=10**6, **more)) for more in ({}, options))
    assert both.config.num_blocks == alone.config.num_blocks // 2


def test_another_vocabulary_is_refused_with_both_sizes(target, tmp_path):
    larger = str(tiny_model(tmp_path, "llama", vocab_size=200))
    with pytest.raises(ValueError, match=r"draft_model .* has a vocabulary of 200 tokens, .* one of \d+"):
        load_model(EngineConfig(model=target, draft_model=larger, **CHOSEN))


def test_what_cannot_be_loaded_is_refused_by_the_draft_model_s_name(target, tmp_path):
    with pytest.raises(ValueError, match=f"draft_model {tmp_path}"):
        load_model(EngineConfig(model=target, draft_model=str(tmp_path), **CHOSEN))


def test_a_length_that_the_draft_model_has_not_learnt_is_refused(target, tmp_path):
    shorter = str(tiny_model(tmp_path, "llama", max_position_embeddings=32))
    with pytest.raises(ValueError, match=r"draft_model .* max_model_len 64 exceeds the model's 32 positions"):
        load_model(EngineConfig(model=target, draft_model=shorter, **CHOSEN))
