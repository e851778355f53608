"""Few rows are multiplied where oneDNN keeps a matrix, or, if it keeps it otherwise, not at all."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import linear

from minipaged.kernels.linear_packed import (
    WIDTH,
    find_blocks,
    linear_packed_cpu,
    linear_packed_spec,
)
from tests.kernels.guard import on_threads

SHAPES = [(64, 16), (192, 48), (960, 576)]


def make(num_rows, outputs, inputs, seed=0):
    """x whose rows lie apart, weight [N, K] and its blocks."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(num_rows, inputs + 3, generator=generator)[:, :inputs]
    weight = torch.randn(outputs, inputs, generator=generator)
    return x, weight, weight.view(-1, WIDTH, inputs).transpose(1, 2).contiguous()


@given(st.integers(0, 5), st.integers(1, 4), st.integers(1, 40), st.integers(0, 9))
@settings(max_examples=30)
def test_the_loops_give_what_the_specification_gives(num_rows, num_blocks, steps, seed):
    x, weight, blocks = make(num_rows, num_blocks * WIDTH, 4 * steps, seed)
    expected = linear_packed_spec(x, blocks)
    torch.testing.assert_close(expected, linear(x, weight), atol=1e-4, rtol=1e-5)
    for num_threads in (1, 3):
        out = on_threads(num_threads, linear_packed_cpu, x, blocks.numpy())
        torch.testing.assert_close(out, expected, atol=1e-4, rtol=1e-5)


def test_a_row_is_the_same_alone_and_in_company_and_its_nan_is_its_own():
    x, _, blocks = make(3, 128, 64)
    x[1, 5] = torch.nan
    out = linear_packed_cpu(x, blocks.numpy())
    assert out.isnan().any(1).tolist() == [False, True, False]
    assert torch.equal(out[2:], linear_packed_cpu(x[2:], blocks.numpy()))


@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
def test_what_onednn_keeps_is_read_in_place_if_it_is_in_blocks(outputs, inputs):
    _, weight, expected = make(1, outputs, inputs)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight)
    blocks = find_blocks(packed, weight)
    if blocks is None:
        pytest.skip("this CPU's oneDNN keeps such a matrix in another order")
    assert np.array_equal(blocks, expected.numpy())
    assert blocks.ctypes.data == torch.ops.mkldnn.data_ptr(packed), "not a copy"


@pytest.mark.parametrize("change", [(0, 0), (63, 15), (127, 31)])
def test_any_other_order_is_noticed_by_a_single_number(change):
    weight = torch.randn(128, 32)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight)
    weight[change] += 1
    assert find_blocks(packed, weight) is None


@pytest.mark.parametrize(("outputs", "inputs"), [(65, 16), (64, 18), (1, 4)])
def test_a_matrix_that_is_not_whole_blocks_is_left_to_onednn(outputs, inputs):
    weight = torch.randn(outputs, inputs)
    assert find_blocks(torch.ops.mkldnn._reorder_linear_weight(weight), weight) is None
