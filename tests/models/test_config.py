"""config.json, as every kind and every age of transformers writes it; what is not built is refused by name."""

import json

import pytest
from transformers import AutoConfig

from minipaged.models.config import parse_model_config, read_json, read_model_config
from tests.models.configs import LLAMA, MISTRAL, MIXTRAL, QWEN2, QWEN2_MOE, QWEN3, QWEN3_MOE

ALL = {raw["architectures"][0]: raw for raw in (LLAMA, MISTRAL, QWEN2, QWEN3, MIXTRAL, QWEN2_MOE, QWEN3_MOE)}


@pytest.mark.parametrize("raw", ALL.values(), ids=ALL)
def test_what_a_config_leaves_out_is_what_transformers_assumes(raw):
    bare = {key: value for key, value in raw.items() if key != "num_key_value_heads"} | {"num_attention_heads": 32}
    ours = parse_model_config(bare)
    theirs = AutoConfig.for_model(ours.kind, **{key: value for key, value in bare.items() if key != "architectures"})
    assert ours.num_kv_heads == theirs.num_key_value_heads
    assert ours.head_dim == (getattr(theirs, "head_dim", None) or 64 // 32)
    assert ours.rms_norm_eps == theirs.rms_norm_eps
    assert ours.max_position_embeddings == theirs.max_position_embeddings
    assert ours.tie_word_embeddings == theirs.tie_word_embeddings
    assert ours.sliding_windows == (getattr(theirs, "sliding_window", None) or None,) * 2
    assert ours.rope.theta == theirs.rope_parameters["rope_theta"]


def test_biases_and_norms_follow_the_kind_and_then_the_flags():
    def parts(raw, **flags):
        config = parse_model_config({**raw, **flags})
        return config.qkv_bias, config.o_bias, config.mlp_bias, config.qk_norm

    assert parts(LLAMA) == (False, False, False, False)
    assert parts(LLAMA, attention_bias=True, mlp_bias=True) == (True, True, True, False)
    assert parts(MISTRAL, attention_bias=True) == (False, False, False, False)
    assert parts(QWEN2) == (True, False, False, False)
    assert parts(QWEN3) == (False, False, False, True)
    assert parts(QWEN3, attention_bias=True) == (True, True, False, True)
    assert parts(MIXTRAL, attention_bias=True) == (False, False, False, False)
    assert parts(QWEN2_MOE) == (True, False, False, False)
    assert parts(QWEN2_MOE, qkv_bias=False) == (False, False, False, False)
    assert parts(QWEN3_MOE) == (False, False, False, True)
    assert parts(QWEN3_MOE, attention_bias=True) == (True, True, False, True)


def test_windows_are_per_layer_as_in_transformers():
    def windows(raw, **fields):
        return parse_model_config({**raw, **fields}).sliding_windows

    assert windows(LLAMA, sliding_window=4) == (None, None)
    assert windows(MISTRAL, sliding_window=4) == (4, 4)
    assert windows(QWEN2, sliding_window=4) == (None, None)
    assert windows(QWEN2, sliding_window=4, use_sliding_window=True, max_window_layers=1) == (None, 4)
    types = ["sliding_attention", "full_attention"]
    assert windows(QWEN3, sliding_window=4, use_sliding_window=True, layer_types=types) == (4, None)
    assert windows(QWEN3, sliding_window=4, layer_types=types) == (None, None)
    assert windows(MIXTRAL) == (None, None)
    assert windows(MIXTRAL, sliding_window=4) == (4, 4)
    assert windows(QWEN3_MOE, sliding_window=4, max_window_layers=1) == (None, None)
    assert windows(QWEN3_MOE, sliding_window=4, use_sliding_window=True, max_window_layers=1) == (4, 4)
    assert windows(QWEN2_MOE, sliding_window=4) == windows(QWEN2_MOE, sliding_window=0) == (None, None)
    assert windows(QWEN2_MOE, sliding_window=4, use_sliding_window=True) == (4, None)
    assert windows(QWEN2_MOE, sliding_window=4, use_sliding_window=True, layer_types=types[::-1]) == (None, 4)


def test_a_null_window_is_no_window(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({**MISTRAL, "sliding_window": None}))
    assert read_model_config(tmp_path).sliding_windows == (None, None)


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize("name", ["type", "rope_type"])
def test_old_and_new_spellings_of_rope_mean_the_same(key, name):
    config = parse_model_config({**LLAMA, "rope_theta": 5e5, key: {name: "linear", "factor": 2.0}})
    assert (config.rope.rope_type, config.rope.factor, config.rope.theta) == ("linear", 2.0, 5e5)


def test_rope_knows_the_length_it_was_trained_on():
    rope = {"rope_type": "yarn", "factor": 4.0}
    assert parse_model_config({**LLAMA, "rope_scaling": rope}).rope.original_max_position_embeddings == 2048
    rope = {**rope, "original_max_position_embeddings": 512}
    assert parse_model_config({**LLAMA, "rope_scaling": rope}).rope.original_max_position_embeddings == 512


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "architecture GPT2LMHeadModel is not built here"),
        ({"architectures": None, "model_type": "gemma"}, "architecture gemma"),
        ({"hidden_act": "gelu"}, "hidden_act must be one of silu"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config .*gptq"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "rope_type must be one of default, .*longrope"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "dynamic"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "low_freq_factor .*llama3"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor .*linear"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
        ({"rope_interleaved": True}, "rope_interleaved"),
        ({"num_key_value_heads": 3}, "4 heads of 16 over 3 kv heads"),
        ({"head_dim": 15}, "4 heads of 15"),
        ({"vocab_size": None}, "vocab_size must be a whole number >= 1, not None"),
        ({"hidden_size": "64"}, "hidden_size must be a whole number >= 1, not '64'"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings must be true or false"),
    ],
)
def test_what_is_not_built_or_makes_no_sense_is_refused_with_the_file(tmp_path, fields, message):
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, **fields}))
    with pytest.raises(ValueError, match=message) as error:
        read_model_config(tmp_path)
    assert str(tmp_path / "config.json") in str(error.value)


def test_layers_that_alternate_in_a_mistral_or_do_not_add_up_are_refused():
    with pytest.raises(ValueError, match="layer_types is not built here for a Mistral"):
        parse_model_config({**MISTRAL, "layer_types": ["sliding_attention", "full_attention"]})
    with pytest.raises(ValueError, match="layer_types is not built here for a Qwen3_moe"):
        parse_model_config({**QWEN3_MOE, "layer_types": ["sliding_attention", "full_attention"]})
    with pytest.raises(ValueError, match="layer_types names 1 layers of 2"):
        parse_model_config({**QWEN2, "layer_types": ["full_attention"]})
    with pytest.raises(ValueError, match="chunked_attention"):
        parse_model_config({**QWEN2, "layer_types": ["full_attention", "chunked_attention"]})


@pytest.mark.parametrize(
    ("text", "message"), [(None, "does not exist"), ("{", "is not JSON"), ("[1]", "not an object")]
)
def test_a_file_that_is_no_config_is_named(tmp_path, text, message):
    path = tmp_path / "config.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ValueError, match=message) as error:
        read_json(path)
    assert str(path) in str(error.value)


def test_eos_may_be_one_id_a_list_none_or_the_default_of_its_kind():
    assert parse_model_config({**LLAMA, "eos_token_id": 2}).eos_token_ids == {2}
    assert parse_model_config({**LLAMA, "eos_token_id": [2, 7]}).eos_token_ids == {2, 7}
    assert parse_model_config({**LLAMA, "eos_token_id": None}).eos_token_ids == frozenset()
    assert parse_model_config(LLAMA).eos_token_ids == {2}, "as transformers' LlamaConfig"
