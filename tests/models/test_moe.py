"""Mixtures of experts: transformers' logits from the same folder, whatever the config says of routers and layers."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from levels import load
from minipaged.config import EngineConfig
from minipaged.loading import load_model
from minipaged.models.config import read_model_config
from minipaged.sampling_params import SamplingParams
from tests.models.test_decoder import logits_in_chunks, random_tokens
from tests.tiny import MOE_KINDS, greedy_tokens, reference_logits, tiny_model

TOLERANCE = {"atol": 2e-3, "rtol": 0.0}
FLAGS = [
    *((kind, {}) for kind in MOE_KINDS),
    ("mixtral", {"sliding_window": 5, "num_local_experts": 3, "num_experts_per_tok": 1}),
    ("mixtral", {"rope": "yarn", "num_key_value_heads": 1, "num_experts_per_tok": 4, "tie_word_embeddings": True}),
    ("qwen2_moe", {"norm_topk_prob": True, "qkv_bias": False, "num_experts_per_tok": 4}),
    ("qwen2_moe", {"use_sliding_window": True, "sliding_window": 5, "decoder_sparse_step": 2}),
    ("qwen3_moe", {"norm_topk_prob": False, "attention_bias": True}),
    ("qwen3_moe", {"use_sliding_window": True, "sliding_window": 5, "mlp_only_layers": [0]}),
    ("qwen3_moe", {"num_hidden_layers": 5, "decoder_sparse_step": 2, "mlp_only_layers": [3]}),
]


@pytest.mark.parametrize(("kind", "flags"), FLAGS)
def test_logits_are_those_of_transformers_at_every_position_and_however_a_text_is_cut(tmp_path, kind, flags):
    folder, tokens = tiny_model(tmp_path, kind, **flags), random_tokens(40)
    model, expected = load_model(EngineConfig(model=str(folder))), reference_logits(folder, tokens)
    torch.testing.assert_close(logits_in_chunks(model, tokens, [40]), expected, **TOLERANCE)
    torch.testing.assert_close(logits_in_chunks(model, tokens, [1, 7, 1, 20, 11]), expected, **TOLERANCE)


def test_renormalised_or_not_is_a_different_model(tmp_path):
    tokens, logits = random_tokens(9), []
    for renormalize in (True, False):
        folder = tiny_model(tmp_path / str(renormalize), "qwen3_moe", norm_topk_prob=renormalize)
        logits.append(logits_in_chunks(load_model(EngineConfig(model=str(folder))), tokens, [9]))
    assert (logits[0] - logits[1]).abs().max() > 1


@pytest.mark.parametrize("kind", MOE_KINDS)
def test_a_level_gives_transformers_tokens(kind, tmp_path):
    folder, prompts = tiny_model(tmp_path, kind), [[3, 14, 15, 92, 65], [7, 9], [35] * 9]
    few_blocks = {"num_blocks": 9, "block_size": 4, "max_num_batched_tokens": 6, "max_model_len": 36}
    asked = EngineConfig(model=str(folder), **few_blocks)
    engine = load(4).Engine(asked, load_model(asked))
    engine.kv_cache.data.fill_(torch.nan)
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    ids = [engine.add_request(prompt, params) for prompt in prompts]
    said = {}
    while engine.has_unfinished_requests():
        said.update({output.request_id: output.outputs[0].token_ids for output in engine.step()})
    assert [said[i] for i in ids] == greedy_tokens(folder, prompts, 12)


@pytest.mark.parametrize("kind", MOE_KINDS)
def test_every_expert_is_loaded_by_its_name_in_the_file_and_one_that_is_missing_is_named(kind, tmp_path):
    folder = tiny_model(tmp_path, kind)
    path, num_experts = folder / "model.safetensors", read_model_config(folder).experts[0].num_experts
    tensors = load_file(path)
    names = [name for name in tensors if f".experts.{num_experts - 1}." in name]
    assert len(names) == 6, "gate, up and down in two layers"
    save_file({name: tensor for name, tensor in tensors.items() if name != names[0]}, path)
    with pytest.raises(ValueError, match=f"missing in the checkpoint: {names[0]}"):
        load_model(EngineConfig(model=str(folder)))
    one_more = names[0].replace(f".{num_experts - 1}.", f".{num_experts}.")
    save_file({**tensors, one_more: tensors[names[0]].clone()}, path)
    with pytest.raises(ValueError, match=f"unknown in the checkpoint: {one_more}"):
        load_model(EngineConfig(model=str(folder)))


def test_load_is_counted_by_layer_and_expert_and_loading_is_none(tmp_path):
    model = load_model(EngineConfig(model=str(tiny_model(tmp_path, "mixtral"))))
    assert [sum(balance.load) for balance in model.model.rebalance()] == [0, 0]
    logits_in_chunks(model, random_tokens(11), [10, 1])
    balances = model.model.rebalance()
    assert [sum(balance.load) for balance in balances] == [22, 22]
    assert all(balance.old == balance.new and balance.after == 1 for balance in balances)
    assert [sum(balance.load) for balance in model.model.rebalance()] == [0, 0]
