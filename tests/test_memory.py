"""Blocks are counted by the memory there is; what could never fit is refused."""

import resource

import pytest
import torch

from minipaged import loading, memory
from minipaged.config import EngineConfig
from minipaged.loading import load_model
from tests.tiny import tiny_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def model(folder):
    return load_model(EngineConfig(model=str(folder), max_num_seqs=3))


def test_the_memory_of_a_cpu_is_not_taken_without_being_asked(model, monkeypatch):
    block_bytes = model.new_kv_cache(1, 16).data.nbytes
    monkeypatch.setattr(memory, "CPU_KV_BYTES", 200 * block_bytes)
    assert model.resolve(EngineConfig()).num_blocks == 200
    monkeypatch.setattr(memory, "CPU_KV_BYTES", 5 * block_bytes)
    assert model.resolve(EngineConfig()).num_blocks == 2048 // 16, "one sequence of full length, in any case"


def test_more_blocks_than_the_machine_has_memory_for_are_refused_with_both_sizes(tmp_path):
    folder = str(tiny_model(tmp_path))
    with pytest.raises(ValueError, match=r"num_blocks 10000000000 x block_size 16 need \d+\.\d GB of memory; cpu has"):
        load_model(EngineConfig(model=folder, num_blocks=10**10))


def test_one_model_serves_engines_of_other_sizes(model):
    config = model.resolve(EngineConfig(model="x", max_model_len=100, max_num_seqs=7, block_size=8))
    assert (config.max_model_len, config.num_blocks, config.dtype) == (100, 7 * 13, "float32")
    assert model.resolve(EngineConfig(num_blocks=5)).num_blocks == 5


def test_what_a_step_gives_back_is_kept_for_the_next():
    def faults():
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        torch.zeros(4 << 20)  # 16 MB, 4,096 pages
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    memory.keep_memory()
    faults()
    assert faults() < 400


def test_weights_that_are_more_than_a_rank_may_hold_are_refused_before_they_are_read(folder, monkeypatch):
    monkeypatch.setattr(loading, "load_weights", None)
    with pytest.raises(ValueError, match=r"^the weights are 0\.00 GB, and rank_memory_gb is 1e-05$"):
        load_model(EngineConfig(model=str(folder), rank_memory_gb=1e-5))


def test_blocks_have_what_the_weights_leave_of_a_ranks_memory(model):
    block_bytes = model.new_kv_cache(1, 16).data.nbytes
    limit = (model.model.num_weight_bytes + 130 * block_bytes + 1) / 1e9
    assert model.resolve(EngineConfig(rank_memory_gb=limit)).num_blocks == 130
    assert model.resolve(EngineConfig(rank_memory_gb=limit, num_blocks=130)).num_blocks == 130
    with pytest.raises(ValueError, match=r"num_blocks 131 x block_size 16 and the weights are .* rank_memory_gb is"):
        model.resolve(EngineConfig(rank_memory_gb=limit, num_blocks=131))
    with pytest.raises(ValueError, match=r"rank_memory_gb .* leaves room for 3 blocks; one request .* needs 128"):
        model.resolve(EngineConfig(rank_memory_gb=(model.model.num_weight_bytes + 3 * block_bytes + 1) / 1e9))
