"""Loading turns wishes into facts; running gives logits of the sampled rows and nothing else."""

import json
import time

import pytest
import torch

from minipaged import runner
from minipaged.batch import Batch, pack
from minipaged.config import EngineConfig
from minipaged.kernels.paged_attention import attend_all
from minipaged.kernels.rms_norm import add_rms_norm_all, rms_norm_all
from minipaged.kernels.rope import rope_all
from minipaged.kernels.silu_mul import silu_mul_all
from minipaged.kernels.write_kv import write_rows
from minipaged.runner import load_model, load_tokenizer
from tests.tiny import VOCAB_SIZE, tiny_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def model(folder):
    return load_model(EngineConfig(model=str(folder), max_num_seqs=3))


def three_tokens(logits_indices):
    return Batch([1, 2, 3], [0, 1, 2], [0, 1, 2], [0, 3], [3], [[0]], logits_indices, [0, len(logits_indices)], [], [])


def test_auto_and_none_become_facts(model):
    config = model.config
    assert (config.device, config.dtype, config.attention_backend) == ("cpu", "float32", "torch")
    assert config.max_model_len == 2048
    assert config.num_blocks == 3 * 2048 // 16


def test_one_model_serves_engines_of_other_sizes(model):
    config = model.resolve(EngineConfig(model="x", max_model_len=100, max_num_seqs=7, block_size=8))
    assert (config.max_model_len, config.num_blocks, config.dtype) == (100, 7 * 13, "float32")
    assert model.resolve(EngineConfig(num_blocks=5)).num_blocks == 5


def test_the_memory_of_a_cpu_is_not_taken_without_being_asked(model, monkeypatch):
    block_bytes = model.new_kv_cache(1, 16).data.nbytes
    monkeypatch.setattr(runner, "CPU_KV_BYTES", 200 * block_bytes)
    assert model.resolve(EngineConfig()).num_blocks == 200
    monkeypatch.setattr(runner, "CPU_KV_BYTES", 5 * block_bytes)
    assert model.resolve(EngineConfig()).num_blocks == 2048 // 16, "one sequence of full length, in any case"


def test_only_sampled_rows_come_back(model):
    cache = model.new_kv_cache(2, 4)
    every = model(three_tokens([0, 1, 2]), cache)
    assert (every.shape, every.dtype) == ((3, VOCAB_SIZE), torch.float32)
    torch.testing.assert_close(model(three_tokens([2]), cache), every[2:])
    assert model(three_tokens([]), cache).shape == (0, VOCAB_SIZE)
    assert model(pack([], 4), cache).shape == (0, VOCAB_SIZE)


def test_a_step_without_sampled_rows_still_fills_the_cache(model):
    cache = model.new_kv_cache(2, 4)
    cache.data.fill_(torch.nan)
    model(three_tokens([]), cache)
    assert cache.data[:, :, 0, :, :3].isfinite().all()
    assert cache.data[:, :, 0, :, 3:].isnan().all()
    assert cache.data[:, :, 1].isnan().all()


def test_time_in_the_model_is_counted_and_grows(model):
    before, start = model.forward_s, time.perf_counter()
    model(three_tokens([2]), model.new_kv_cache(1, 4))
    assert 0 < model.forward_s - before <= time.perf_counter() - start


def test_warming_up_compiles_the_kernels_and_counts_no_time(tmp_path):
    fresh = load_model(EngineConfig(model=str(tiny_model(tmp_path, "qwen3"))))  # the kind that calls them all
    kernels = (attend_all, write_rows, rms_norm_all, add_rms_norm_all, rope_all, silu_mul_all)
    compiled = [len(kernel.signatures) for kernel in kernels]
    assert all(compiled)
    assert fresh.forward_s == 0
    for num_tokens in (1, 2, 40):
        fresh.run_one(num_tokens)
    assert [len(kernel.signatures) for kernel in kernels] == compiled


def test_end_of_text_is_what_any_of_three_files_says(tmp_path):
    folder = tiny_model(tmp_path, eos_token_id=[3, 4])
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 5}))
    assert load_model(EngineConfig(model=str(folder))).eos_token_ids == {3, 4, 5}
    (folder / "generation_config.json").unlink()
    assert load_model(EngineConfig(model=str(folder))).eos_token_ids == {3, 4}


def test_a_model_without_a_tokenizer_has_no_words(model):
    assert model.tokenizer is None
    assert model.decode([1, 2, 3]) == ""


def test_a_tokenizer_that_cannot_decode_step_by_step_is_refused_by_its_folder(tmp_path, monkeypatch):
    from transformers import AutoTokenizer

    monkeypatch.setattr(AutoTokenizer, "from_pretrained", lambda folder: object())
    (tmp_path / "vocab.json").write_text("{}")
    with pytest.raises(ValueError, match=f"{tmp_path}: an? object cannot decode step by step"):
        load_tokenizer(tmp_path)


def test_more_positions_than_the_model_has_are_refused(folder):
    with pytest.raises(ValueError, match="max_model_len 2049 exceeds the model's 2048 positions"):
        load_model(EngineConfig(model=str(folder), max_model_len=2049))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_cuda_without_cuda_is_refused(folder):
    with pytest.raises(ValueError, match="there is no CUDA device here"):
        load_model(EngineConfig(model=str(folder), device="cuda"))


@pytest.mark.default_model
def test_the_default_model_answers():
    model = load_model(EngineConfig())
    prompt = model.tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}], add_generation_prompt=True, return_dict=False
    )
    tokens, cache = list(prompt), model.new_kv_cache(1, 128)
    while len(tokens) < len(prompt) + 8:
        n = len(tokens)
        positions = list(range(n))
        batch = Batch(tokens, positions, positions, [0, n], [n], [[0]], [n - 1], [0, 1], [], [])
        tokens.append(int(model(batch, cache).argmax()))
    assert model.decode(tokens[len(prompt) :]).startswith("The capital of France is Paris.")
    assert 2 in model.eos_token_ids


def test_more_blocks_than_the_machine_has_memory_for_are_refused_with_both_sizes(tmp_path):
    folder = str(tiny_model(tmp_path))
    with pytest.raises(ValueError, match=r"num_blocks 10000000000 x block_size 16 need \d+\.\d GB of memory; cpu has"):
        load_model(EngineConfig(model=folder, num_blocks=10**10))
