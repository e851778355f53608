"""Blocks are counted by the memory there is; what could never fit is refused."""

import resource

import pytest
import torch

from minipaged import loading, memory
from minipaged.config import EngineConfig
from minipaged.loading import load_model
from minipaged.models.config import read_model_config
from minipaged.models.decoder import Decoder
from minipaged.models.linear import HAS_ONEDNN
from minipaged.ops import choose_ops
from minipaged.parallel.groups import Alone
from minipaged.parallel.place import Place
from tests.parallel.crew import Mute
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
    assert min(faults() for _ in range(8)) < 400, "once what others gave back untouched has been touched, too"


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


@pytest.mark.skipif(not HAS_ONEDNN, reason="without oneDNN no matrix is packed, so nothing is there twice")
def test_a_tied_head_that_is_packed_is_there_twice_and_counts_twice(folder, tmp_path):
    sizes = [load_model(EngineConfig(model=str(f))).model.num_weight_bytes for f in (folder, tied(tmp_path))]
    assert sizes[0] == sizes[1], "as much as if the head were a matrix of its own"
    in_half = load_model(EngineConfig(model=str(tmp_path), dtype="bfloat16")).model.num_weight_bytes
    assert in_half * 2 < sizes[1], "only float32 is packed"


def tied(path):
    return tiny_model(path, tie_word_embeddings=True)


def test_slots_for_copies_of_experts_count_before_anything_is_in_them(tmp_path):
    config = read_model_config(tiny_model(tmp_path, "mixtral"))
    sizes = []
    for num_redundant in (0, 4):
        place = Place(*[Alone()] * 3, Place.alone().traffic, experts=Mute(1, 2), num_redundant=num_redundant)
        ops = choose_ops("torch", torch.float32, torch.device("cpu"))
        sizes.append(Decoder(config, ops, torch.float32, torch.device("cpu"), place).num_weight_bytes)
    expert_bytes = 3 * config.hidden_size * config.intermediate_size * 4
    assert sizes[1] - sizes[0] == 2 * 2 * expert_bytes, "two on this rank, in two layers"


def test_a_draft_model_takes_its_share_wherever_it_was_loaded(folder):
    """In this process, or by a driver, which tells its ranks."""
    guessing = {"draft_model": str(folder), "speculative_method": "draft_model", "num_speculative_tokens": 2}
    model = load_model(EngineConfig(model=str(folder), **guessing))
    block_bytes = model.new_kv_cache(1, 16).data.nbytes
    limit = (2 * model.model.num_weight_bytes + 2 * 150 * block_bytes + 1) / 1e9
    assert model.resolve(EngineConfig(rank_memory_gb=limit, **guessing)).num_blocks == 150
    alone = load_model(EngineConfig(model=str(folder)))
    alone.beside = memory.measure(model.drafts[str(folder)], EngineConfig())
    assert alone.resolve(EngineConfig(rank_memory_gb=limit)).num_blocks == 150


def test_a_model_without_experts_spreads_none(folder):
    with pytest.raises(ValueError, match=r"^enable_expert_parallel spreads experts, and .* has none$"):
        load_model(EngineConfig(model=str(folder), enable_expert_parallel=True))


def test_the_same_memory_has_more_narrow_blocks_than_wide_ones(folder, monkeypatch):
    wide = load_model(EngineConfig(model=str(folder), max_num_seqs=999))
    monkeypatch.setattr(memory, "CPU_KV_BYTES", 1000 * wide.new_kv_cache(1, 16).num_bytes)
    assert wide.resolve(EngineConfig(max_num_seqs=999)).num_blocks == 1000
    for kept in ("int8", "fp8"):
        narrow = load_model(EngineConfig(model=str(folder), max_num_seqs=999, kv_cache_dtype=kept))
        assert narrow.config.num_blocks == 1000 * 64 // 20  # heads of 16: 64 bytes, or 16 and a scale
