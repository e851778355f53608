"""A configuration that exists is legal; what a level does not have yet is refused by name."""

import re
from dataclasses import fields

import pytest

from levels import load
from minipaged.config import CHOICES, EngineConfig

from .fake_model import FakeModel


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_model_len", 1),
        ("max_num_seqs", 0),
        ("num_blocks", 0),
        ("block_size", 0),
        ("max_num_batched_tokens", 0),
        ("long_prefill_token_threshold", -1),
        ("gpu_memory_utilization", 0),
        ("gpu_memory_utilization", 1.5),
        ("scheduling_policy", "lifo"),
        ("device", "tpu"),
        ("dtype", "float8"),
        ("load_format", "pickle"),
        ("attention_backend", "flash"),
    ],
)
def test_an_illegal_value_is_refused_by_name(field, value):
    with pytest.raises(ValueError, match=f"{field} must be .*{value}"):
        EngineConfig(**{field: value})


@pytest.mark.parametrize("field", ["max_num_seqs", "num_blocks", "block_size", "max_model_len", "seed"])
@pytest.mark.parametrize("value", [1.5, "16", True])
def test_a_count_of_the_wrong_type_is_refused_by_name(field, value):
    with pytest.raises(TypeError, match=field):
        EngineConfig(**{field: value})


def test_what_only_the_model_knows_may_be_left_open():
    config = EngineConfig()
    assert (config.max_model_len, config.num_blocks) == (None, None)


def test_the_longest_chunk_is_the_threshold_or_the_whole_budget():
    assert EngineConfig(max_num_batched_tokens=100).max_chunk_len == 100
    assert EngineConfig(max_num_batched_tokens=100, long_prefill_token_threshold=30).max_chunk_len == 30


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize(
    "field",
    [{"max_num_batched_tokens": 8}, {"long_prefill_token_threshold": 8}, {"scheduling_policy": "priority"}],
    ids=str,
)
def test_a_level_refuses_what_a_later_one_brings(level, field):
    config = EngineConfig(num_blocks=64, max_model_len=64, **field)
    (name,) = field
    with pytest.raises(ValueError, match=f"{name} comes with level 03, this is level 0{level}"):
        load(level).Engine(config, FakeModel())
    load(3).Engine(config, FakeModel())


SINCE = {
    1: {"model", "device", "dtype", "load_format", "attention_backend", "max_model_len", "max_num_seqs", "num_blocks"}
    | {"block_size", "gpu_memory_utilization", "seed", "quantization", "kv_cache_dtype", "enforce_eager"},
    3: {"max_num_batched_tokens", "long_prefill_token_threshold", "scheduling_policy"},
    4: {"enable_prefix_caching"},
    5: {"num_speculative_tokens", "speculative_method", "draft_model", "prompt_lookup_min", "prompt_lookup_max"}
    | {"speculative_length"},
    6: {"tensor_parallel_size", "pipeline_parallel_size", "pipeline_layers", "distributed_executor_backend"}
    | {"rank_memory_gb"},
    7: {"data_parallel_size", "data_parallel_router", "enable_expert_parallel", "enable_eplb", "num_redundant_experts"},
}


def test_every_field_says_since_when_and_what_for():
    own = {field.name: field.metadata["level"] for field in fields(EngineConfig)}
    assert own == {name: level for level, names in SINCE.items() for name in names}
    assert all(len(field.metadata["help"]) > 10 for field in fields(EngineConfig))


def test_a_config_that_asks_for_nothing_asks_for_what_the_flags_promise():
    config = EngineConfig()
    assert (config.model, config.max_num_seqs, config.block_size, config.seed) == ("smollm2-135m", 64, 16, 0)
    assert (config.max_num_batched_tokens, config.long_prefill_token_threshold) == (1024, 0)
    assert config.scheduling_policy == "fcfs"


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"num_speculative_tokens": -1}, "num_speculative_tokens must be a whole number >= 0, not -1"),
        ({"prompt_lookup_min": 0}, "prompt_lookup_min must be a whole number >= 1, not 0"),
        (
            {"prompt_lookup_min": 3, "prompt_lookup_max": 2},
            "prompt_lookup_max 2 is less than prompt_lookup_min 3",
        ),
        ({"speculative_method": "eagle"}, "speculative_method must be one of ngram, draft_model, not 'eagle'"),
        ({"speculative_method": "draft_model"}, "draft_model None, speculative_method 'draft_model'"),
        ({"draft_model": "x", "num_speculative_tokens": 1}, "draft_model 'x', speculative_method 'ngram'"),
        ({"draft_model": "x", "speculative_method": "draft_model"}, "draft_model 'x' would guess nothing"),
    ],
    ids=str,
)
def test_guesses_that_cannot_be_are_refused(fields, named):
    with pytest.raises(ValueError, match=re.escape(named)):
        EngineConfig(**fields)


@pytest.mark.parametrize("listed", ["10,12", "10,12,8,0", "10,0,20", "10,-1,21", "a,b,c", "", "10;12;8", " 1, 2,3"])
def test_a_list_of_layers_has_a_number_for_each_stage(listed):
    with pytest.raises(
        ValueError, match=rf"pipeline_layers .* pipeline_parallel_size 3, .*not {re.escape(repr(listed))}"
    ):
        EngineConfig(pipeline_parallel_size=3, pipeline_layers=listed)
    with pytest.raises(TypeError, match=r"pipeline_layers must be text: .*, not \[10, 12, 8\]"):
        EngineConfig(pipeline_parallel_size=3, pipeline_layers=[10, 12, 8])


def test_stages_are_as_even_as_can_be_or_as_listed():
    assert EngineConfig(pipeline_parallel_size=3).stage_layers is None
    assert EngineConfig(pipeline_parallel_size=3, pipeline_layers="10,12,8").stage_layers == (10, 12, 8)
    assert EngineConfig(pipeline_layers="30").stage_layers == (30,)


LEAST = [{name: 1} for name in ("num_blocks", "block_size", "max_num_seqs", "max_num_batched_tokens")]
ENDS = [*LEAST, {"max_model_len": 2}, {"seed": -(2**63)}, {"seed": 2**63 - 1}, {"gpu_memory_utilization": 1}]


@pytest.mark.parametrize("fields", ENDS, ids=str)
def test_the_ends_of_a_legal_range_are_legal(fields):
    EngineConfig(**fields)


@pytest.mark.parametrize("seed", [-(2**63) - 1, 2**63])
def test_a_seed_has_64_bits(seed):
    with pytest.raises(ValueError, match="seed"):
        EngineConfig(seed=seed)


def test_every_default_is_legal():
    defaults = {field.name: field.default for field in fields(EngineConfig)}
    assert all(defaults[name] in choices for name, choices in CHOICES.items())


def test_one_process_is_one_rank():
    assert EngineConfig().chosen_backend == "uniproc"
    assert EngineConfig(tensor_parallel_size=2, pipeline_parallel_size=3).num_ranks == 6
    assert EngineConfig(pipeline_parallel_size=2).chosen_backend == "mp"
    assert EngineConfig(distributed_executor_backend="torchrun").chosen_backend == "torchrun"
    with pytest.raises(ValueError, match="distributed_executor_backend uniproc is one process, not 2 ranks"):
        EngineConfig(tensor_parallel_size=2, distributed_executor_backend="uniproc")
    with pytest.raises(ValueError, match="rank_memory_gb must be a number in"):
        EngineConfig(rank_memory_gb=0)


def test_what_experts_may_be_asked_for_goes_together():
    with pytest.raises(ValueError, match="num_redundant_experts 2 needs enable_expert_parallel"):
        EngineConfig(num_redundant_experts=2)
    with pytest.raises(ValueError, match="num_redundant_experts must be a whole number >= 0, not -1"):
        EngineConfig(num_redundant_experts=-1)
    for half in ({}, {"enable_expert_parallel": True}, {"data_parallel_size": 2}):
        with pytest.raises(ValueError, match=r"enable_eplb .* needs enable_expert_parallel and data_parallel_size > 1"):
            EngineConfig(enable_eplb=True, **half)
    EngineConfig(enable_eplb=True, enable_expert_parallel=True, data_parallel_size=2, num_redundant_experts=2)
