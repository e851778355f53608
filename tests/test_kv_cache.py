"""One memory of slots for all layers."""

import pytest
import torch

from minipaged.kv_cache import KVCache
from minipaged.models.config import parse_model_config
from minipaged.parallel.portion import Nth, split_model
from tests.models.configs import LLAMA


def test_layers_are_views_of_one_memory_block_by_block():
    config = parse_model_config({**LLAMA, "num_hidden_layers": 3})
    cache = KVCache(5, 4, split_model(config, Nth(), Nth()), config.head_dim, torch.bfloat16, torch.device("cpu"))
    assert (cache.num_blocks, cache.block_size, len(cache.layers)) == (5, 4, 3)
    cache.data.zero_()
    cache.layers[1].values[2] = 1
    assert cache.data[1, 1, 2].eq(1).all()
    assert cache.data.sum() == cache.data[1, 1, 2].numel()
    for layer in cache.layers:
        assert layer.keys.shape == layer.values.shape == (5, 2, 4, 16)
        assert layer.keys.is_contiguous()
        assert layer.keys.dtype == torch.bfloat16


def test_heads_of_64_are_smaller_by_as_much_as_the_texts_say():
    config = parse_model_config({**LLAMA, "head_dim": 64})
    sizes = {
        dtype: KVCache(5, 4, split_model(config, Nth(), Nth()), 64, dtype, torch.device("cpu")).num_bytes
        for dtype in (torch.float32, torch.bfloat16, torch.int8)
    }
    assert round(sizes[torch.float32] / sizes[torch.int8], 1) == 3.8
    assert round(sizes[torch.bfloat16] / sizes[torch.int8], 1) == 1.9


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_narrow_numbers_have_a_scale_for_each_token_and_head_beside_them(dtype):
    config = parse_model_config({**LLAMA, "num_hidden_layers": 3})
    cache = KVCache(5, 4, split_model(config, Nth(), Nth()), config.head_dim, dtype, torch.device("cpu"))
    cache.scales.zero_()
    cache.layers[1].scales[1][2] = 1
    assert cache.scales[1, 1, 2].eq(1).all()
    assert cache.scales.sum() == 2 * 4  # of one block: its heads times its slots
    assert cache.num_bytes == 3 * 2 * 5 * 2 * 4 * (16 + 4)
