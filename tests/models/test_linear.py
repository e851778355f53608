"""A packed product is the same product."""

import pytest
import torch
from torch.nn.functional import linear

from minipaged.models import linear as module
from minipaged.models.linear import FEW, Linear, packed_linear

CPU = torch.device("cpu")


def random_linear(outputs, inputs, bias):
    layer = Linear(outputs, inputs, bias=bias, dtype=torch.float32, device=CPU)
    layer.weight.normal_()
    if layer.bias is not None:
        layer.bias.normal_()
    return layer


@pytest.mark.parametrize("num_rows", [0, 1, 5, 64])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("outputs", "inputs"), [(96, 32), (7, 5), (1, 64)])
def test_packing_changes_the_order_of_the_weights_and_nothing_else(num_rows, bias, outputs, inputs):
    layer = random_linear(outputs, inputs, bias)
    x = torch.randn(num_rows, inputs)
    expected = linear(x, layer.weight, layer.bias)
    torch.testing.assert_close(layer(x), expected)
    layer.pack()
    assert layer.product is packed_linear
    torch.testing.assert_close(layer(x), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_not_packed(dtype):
    layer = Linear(4, 4, bias=False, dtype=dtype, device=CPU)
    layer.pack()
    assert layer.product is linear


@pytest.mark.parametrize("bias", [False, True])
def test_few_rows_of_whole_blocks_are_ours_and_more_are_not(bias, monkeypatch):
    layer = random_linear(128, 32, bias)
    x = torch.randn(FEW + 1, 32)
    expected = linear(x, layer.weight, layer.bias)
    layer.pack()
    if layer.blocks is None:
        pytest.skip("this CPU's oneDNN keeps such a matrix in another order")
    torch.testing.assert_close(layer(x), expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(layer(x[:FEW]), expected[:FEW], atol=1e-4, rtol=1e-4)
    monkeypatch.setattr(module, "linear_packed_cpu", lambda x, blocks: torch.zeros(len(x), 128))
    assert torch.equal(layer(x[:FEW]), torch.zeros(FEW, 128) if layer.bias is None else layer.bias.expand(FEW, -1))
    torch.testing.assert_close(layer(x), expected, atol=1e-4, rtol=1e-4)
