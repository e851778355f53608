"""Running gives logits of the sampled rows and nothing else."""

import time

import pytest
import torch

from minipaged.batch import Batch, pack
from minipaged.config import EngineConfig
from minipaged.loading import load_model
from tests.tiny import VOCAB_SIZE, tiny_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def model(folder):
    return load_model(EngineConfig(model=str(folder), max_num_seqs=3))


def three_tokens(logits_indices):
    return Batch([1, 2, 3], [0, 1, 2], [0, 1, 2], [0, 3], [3], [[0]], logits_indices, [0, len(logits_indices)], [], [])


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


@pytest.mark.default_model
def test_the_default_model_answers():
    model = load_model(EngineConfig())
    prompt = model.vocabulary.tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}], add_generation_prompt=True, return_dict=False
    )
    tokens, cache = list(prompt), model.new_kv_cache(1, 128)
    while len(tokens) < len(prompt) + 8:
        n = len(tokens)
        positions = list(range(n))
        batch = Batch(tokens, positions, positions, [0, n], [n], [[0]], [n - 1], [0, 1], [], [])
        tokens.append(int(model(batch, cache).argmax()))
    assert model.vocabulary.decode(tokens[len(prompt) :]).startswith("The capital of France is Paris.")
    assert 2 in model.vocabulary.eos_token_ids
