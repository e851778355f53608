"""Every token's keys and values land in its slot, and nothing else changes."""

import math

import pytest
import torch

from minipaged.kernels.write_kv import write_kv_cpu, write_kv_spec

IMPLEMENTATIONS = [write_kv_spec, write_kv_cpu]


@pytest.mark.parametrize("write", IMPLEMENTATIONS)
@pytest.mark.parametrize("block_size", [1, 3, 4])
def test_each_token_fills_its_slot_and_only_that(write, block_size):
    keys, values = torch.full((2, 12 // block_size, 2, block_size, 6), math.nan)
    k, v = torch.randn(2, 4, 2, 6)
    slots = torch.tensor([7, -1, 0, 11])
    write(k, v, keys, values, slots)
    for new, cache in ((k, keys), (v, values)):
        by_slot = cache.transpose(1, 2).flatten(0, 1)
        assert torch.equal(by_slot[[7, 0, 11]], new[[0, 2, 3]])
        assert int(by_slot.isnan().all(-1).all(-1).sum()) == 9


@pytest.mark.parametrize("write", IMPLEMENTATIONS)
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_no_number_is_zero_under_a_key_of_nan(write, number):
    keys, values = torch.full((2, 2, 2, 4, 6), 7.0)
    k, v = torch.randn(2, 3, 2, 6)
    v[1, 0, 5] = number
    write(k, v, keys, values, torch.tensor([6, 1, -1]))
    assert keys[0, 0, 1].isnan().all()
    assert not values[0, 0, 1].any()
    k[1, 0], v[1, 0] = 7.0, 0.0
    assert torch.equal(keys[0, 1:, 1], k[1, 1:])
    assert torch.equal(values[0, :, 1], v[1])
    assert torch.equal(values[1, :, 2], v[0])


@pytest.mark.parametrize("write", IMPLEMENTATIONS)
def test_slices_of_one_fused_product_are_read_where_they_lie(write):
    qkv = torch.randn(5, 4, 6)
    k, v = qkv[:, 2:3], qkv[:, 3:4]
    fused, copied = torch.zeros(2, 2, 2, 1, 4, 6)
    write(k, v, *fused, torch.arange(5))
    write(k.contiguous(), v.contiguous(), *copied, torch.arange(5))
    assert torch.equal(fused, copied)


@pytest.mark.parametrize("write", IMPLEMENTATIONS)
def test_nothing_to_write_writes_nothing(write):
    keys, values = torch.full((2, 2, 1, 4, 6), 3.0)
    write(torch.randn(0, 1, 6), torch.randn(0, 1, 6), keys, values, torch.arange(0))
    assert (keys == 3).all()
    assert (values == 3).all()


def test_shapes_and_types_that_do_not_fit_are_refused():
    keys, values = torch.zeros(2, 2, 1, 4, 6)
    k, v = torch.zeros(2, 3, 1, 6)
    with pytest.raises(AssertionError, match=r"k torch.Size\(\[3, 1, 6\]\)"):
        write_kv_cpu(k, v, keys, values, torch.arange(2))
    with pytest.raises(AssertionError, match="float16"):
        write_kv_cpu(k.half(), v.half(), keys, values, torch.arange(3))
