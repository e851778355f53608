"""The Triton kernel against its specification, bit for bit, over a pool of NaN."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minipaged.kernels.write_kv import write_kv_spec
from minipaged.kernels.write_kv_triton import write_kv
from tests.kernels.guard import DEVICE, DTYPES, guarded, randn
from tests.kernels.pool import far_apart


def same_bits(a, b):
    integers = {2: torch.int16, 4: torch.int32}[a.element_size()]
    return torch.equal(a.contiguous().view(integers), b.contiguous().view(integers))


@st.composite
def writes(draw):
    """k, v, a pool and slots: any subset of the pool's, in any order, some tokens nowhere."""
    num_blocks, block_size = draw(st.integers(1, 4)), draw(st.sampled_from([1, 3, 8, 16]))
    num_heads, head_dim = draw(st.sampled_from([(1, 16), (3, 24), (8, 80), (5, 256)]))
    dtype = draw(st.sampled_from(DTYPES))
    slots = draw(st.permutations(range(num_blocks * block_size)))[: draw(st.integers(0, 9))]
    slots = [draw(st.sampled_from([slot, slot, slot, -1])) for slot in slots]
    qkv = randn(len(slots), 3 * num_heads, head_dim + 8, dtype=dtype)[..., :head_dim]
    if slots and draw(st.booleans()):
        qkv[draw(st.integers(0, len(slots) - 1)), -1, head_dim - 1] = draw(st.sampled_from([torch.nan, -torch.inf]))
    pool = torch.full((num_blocks, 2, num_heads, block_size, head_dim), float("nan"), dtype=dtype, device=DEVICE)
    return qkv[:, num_heads : 2 * num_heads], qkv[:, -num_heads:], pool, torch.tensor(slots, dtype=torch.int64)


@given(writes())
@settings(max_examples=30)
def test_every_token_lands_in_its_slot_and_nowhere_else(write):
    k, v, pool, slots = write
    expected, slots = pool.clone(), slots.to(DEVICE)
    write_kv_spec(k, v, expected[:, 0], expected[:, 1], slots)
    guarded(write_kv, k, v, pool[:, 0], pool[:, 1], slots)  # interleaved: views of one pool
    assert same_bits(pool, expected)


@pytest.mark.skipif(DEVICE == "cuda", reason="borrows address space without memory behind it, which a GPU has not")
def test_offsets_into_the_pool_are_64_bits_wide():
    keys, values = far_apart(2, 1, 8, 16)
    k, v = randn(2, 3, 1, 16, dtype=torch.float16)
    write_kv(k, v, keys, values, torch.tensor([23, 3, 8]))
    for t, (block, offset) in enumerate([(2, 7), (0, 3), (1, 0)]):
        assert torch.equal(keys[block, :, offset], k[t])
        assert torch.equal(values[block, :, offset], v[t])


def test_what_does_not_fit_is_refused_by_name():
    k, v = randn(2, 3, 2, 16)
    keys, values = randn(2, 4, 2, 8, 16)
    slots = torch.arange(3, device=DEVICE)
    with pytest.raises(ValueError, match=r"slot_mapping has shape \(2,\), expected \(3,\)"):
        write_kv(k, v, keys, values, slots[:2])
    with pytest.raises(ValueError, match=r"slot_mapping is torch\.int32, expected torch.int64"):
        write_kv(k, v, keys, values, slots.int())
    with pytest.raises(ValueError, match=r"keys has shape .*, expected \('any', 2, 'any', 16\)"):
        write_kv(k, v, keys[:, :1], values[:, :1], slots)
    with pytest.raises(ValueError, match=r"v is torch\.float16"):
        write_kv(k, v.half(), keys, values, slots)
