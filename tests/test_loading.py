"""Loading turns wishes into facts, and compiles what is compiled at its first use."""

import pytest
import torch

from minipaged.config import EngineConfig
from minipaged.kernels import linear_int8
from minipaged.kernels.draw import cut_all, pick_all
from minipaged.kernels.layer import layer_all
from minipaged.kernels.linear_int8 import join_all, multiply_all, split_all
from minipaged.kernels.paged_attention import attend_all
from minipaged.kernels.rms_norm import add_rms_norm_all, rms_norm_all
from minipaged.kernels.rope import rope_all
from minipaged.kernels.silu_mul import silu_mul_all
from minipaged.kernels.write_kv import write_all
from minipaged.loading import check_fp8_cache, load_model
from tests.tiny import tiny_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def model(folder):
    return load_model(EngineConfig(model=str(folder), max_num_seqs=3))


def test_auto_and_none_become_facts(model):
    config = model.config
    assert (config.device, config.dtype, config.attention_backend) == ("cpu", "float32", "torch")
    assert config.max_model_len == 2048
    assert config.num_blocks == 3 * 2048 // 16


def test_warming_up_compiles_the_kernels_and_counts_no_time(tmp_path):
    fresh = load_model(EngineConfig(model=str(tiny_model(tmp_path, "qwen3"))))  # the kind that calls them all
    kernels = (attend_all, write_all, rms_norm_all, add_rms_norm_all, rope_all, silu_mul_all, cut_all, pick_all)
    compiled = [len(kernel.signatures) for kernel in kernels]
    assert all(compiled)
    assert fresh.forward_s == 0
    for num_tokens in (1, 2, 40):
        fresh.run_one(num_tokens)
    assert [len(kernel.signatures) for kernel in kernels] == compiled


@pytest.mark.parametrize("exact", [True, False])
def test_warming_up_compiles_what_int8_needs(tmp_path, monkeypatch, exact):
    monkeypatch.setattr(linear_int8, "has_exact_product", lambda: exact)
    fresh = load_model(EngineConfig(model=str(tiny_model(tmp_path)), quantization="int8"))
    kernels = (layer_all, multiply_all, split_all, *([join_all] if exact else []), add_rms_norm_all, attend_all)
    compiled = [len(kernel.signatures) for kernel in kernels]
    assert all(compiled)
    for num_tokens in (1, 2, 16, 17, 40):
        fresh.run_one(num_tokens)
    assert [len(kernel.signatures) for kernel in kernels] == compiled


def test_more_positions_than_the_model_has_are_refused(folder):
    with pytest.raises(ValueError, match="max_model_len 2049 exceeds the model's 2048 positions"):
        load_model(EngineConfig(model=str(folder), max_model_len=2049))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_cuda_without_cuda_is_refused(folder):
    with pytest.raises(ValueError, match="there is no CUDA device here"):
        load_model(EngineConfig(model=str(folder), device="cuda"))


def test_fp8_is_refused_where_it_cannot_be_had(folder, monkeypatch):
    with pytest.raises(ValueError, match="kv_cache_dtype fp8: Triton's interpreter rounds"):
        load_model(EngineConfig(model=str(folder), device="cpu", attention_backend="triton", kv_cache_dtype="fp8"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA A100")
    with pytest.raises(ValueError, match=r"kv_cache_dtype fp8 needs .* this is a NVIDIA A100 \(use int8\)"):
        check_fp8_cache("cuda", "triton")


def test_fp8_on_a_cpu_says_that_it_is_slow(folder, capsys):
    load_model(EngineConfig(model=str(folder), device="cpu", kv_cache_dtype="fp8"))
    assert "kv_cache_dtype fp8 on a CPU" in capsys.readouterr().err
