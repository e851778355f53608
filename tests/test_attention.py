"""The seam: one call writes, then reads; which implementation is behind it makes no difference."""

import math
from functools import partial

import pytest
import torch

from minipaged.attention import attend_cpu, attend_spec, choose_attend
from minipaged.batch import Batch
from minipaged.input_batch import to_device
from minipaged.kernels.narrow import narrow_spec, widen_spec
from minipaged.kernels.paged_attention import ALL_KEYS
from minipaged.kv_cache import NARROW, LayerCache

CPU = torch.device("cpu")


def one_batch():
    """A prompt of 5 and a decode at position 6, block size 4; the decode's first 6 keys are in the cache."""
    batch = Batch(
        token_ids=[0] * 6,
        positions=[0, 1, 2, 3, 4, 6],
        slot_mapping=[4, 5, 6, 7, 12, 2],
        query_start_loc=[0, 5, 6],
        seq_lens=[5, 7],
        block_tables=[[1, 3], [2, 0]],
        logits_indices=[4, 5],
        row_start_loc=[0, 1, 2],
        rows=[],
        known=[],
    )
    torch.manual_seed(0)
    cache = LayerCache(torch.full((4, 2, 4, 8), math.nan), torch.full((4, 2, 4, 8), math.nan))
    for part in cache[:2]:
        part[2], part[0, :, :2] = torch.randn(2, 4, 8), torch.randn(2, 2, 8)
    return torch.randn(6, 4, 8), torch.randn(6, 2, 8), torch.randn(6, 2, 8), cache, to_device(batch, CPU)


@pytest.mark.parametrize("window", [None, 1, 3])
def test_kernel_and_specification_are_interchangeable(window):
    fast = choose_attend(torch.float32, "auto", CPU, window)
    slow = choose_attend(torch.float64, "auto", CPU, window)
    assert fast.func is attend_cpu
    assert slow.func is attend_spec
    (q, k, v, cache, batch), (*_, other, _) = one_batch(), one_batch()
    torch.testing.assert_close(fast(q, k, v, cache, batch), slow(q, k, v, other, batch))
    for part, same in zip(cache[:2], other[:2], strict=True):
        torch.testing.assert_close(part, same, equal_nan=True)


def test_a_token_sees_its_own_key_and_those_that_came_with_it():
    q, k, v, cache, batch = one_batch()
    out = choose_attend(torch.float32, "auto", CPU, None)(q, k, v, cache, batch)
    torch.testing.assert_close(out[0], v[0].repeat_interleave(2, 0))
    scores = torch.einsum("hd,nhd->hn", q[4], k[:5].repeat_interleave(2, 1)) / math.sqrt(8)
    expected = torch.einsum("hn,nhd->hd", scores.softmax(-1), v[:5].repeat_interleave(2, 1))
    torch.testing.assert_close(out[4], expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_stays_close_to_single(dtype):
    q, k, v, cache, batch = one_batch()
    narrow = LayerCache(*(part.to(dtype) for part in cache[:2]))
    out = choose_attend(dtype, "auto", CPU, None)(q.to(dtype), k.to(dtype), v.to(dtype), narrow, batch)
    assert out.dtype == dtype
    expected = choose_attend(torch.float32, "auto", CPU, None)(q, k, v, cache, batch)
    torch.testing.assert_close(out.float(), expected, atol=0.03, rtol=0.03)


@pytest.mark.parametrize(("kept", "func"), [("int8", attend_cpu), ("fp8", attend_spec)])
@pytest.mark.parametrize("window", [None, 3])
def test_a_narrow_cache_is_written_and_read_as_the_specification_says(kept, func, window):
    """And nearly as a wide one."""
    (q, k, v, wide, batch), caches = one_batch(), []
    for attend in (choose_attend(torch.float32, kept, CPU, window), partial(attend_spec, window or ALL_KEYS)):
        cache = LayerCache(
            *(torch.zeros(4, 2, 4, 8).to(NARROW[kept]) for _ in range(2)), tuple(torch.zeros(2, 4, 2, 4))
        )
        fill(cache, wide)
        caches.append((attend(q, k, v, cache, batch), cache))
    (out, cache), (expected, same) = caches
    assert choose_attend(torch.float32, kept, CPU, window).func is func
    torch.testing.assert_close(out, expected)
    for i in range(2):
        kept = [widen_spec(part[i], part.scales[i]).nan_to_num(99) for part in (cache, same)]
        assert torch.equal(*kept)
    close = choose_attend(torch.float32, "auto", CPU, window)(q, k, v, wide, batch)
    torch.testing.assert_close(out, close, atol=0.1, rtol=0)
    assert not torch.equal(out, close)


def fill(cache, wide):
    """What wide has of earlier steps, narrow."""
    for pool, scales, rows in zip(cache[:2], cache.scales, wide[:2], strict=True):
        pool[:], scales[:] = narrow_spec(rows, pool.dtype)
