"""Each row gets its own expert's answer, whoever else is there, and whatever lies in the matrices nobody asked for."""

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minipaged.kernels import fused_moe_triton
from minipaged.kernels.fused_moe import fused_moe_spec, fused_moe_torch, sort_by_expert
from minipaged.kernels.fused_moe_triton import Tiles, fused_moe
from tests.kernels.guard import DEVICE, DTYPES, assert_close, guarded, randn
from tests.kernels.pool import far_apart

SMALL = Tiles(rows=16, columns=32, inputs=16, warps=4, stages=1)  # small shapes have several of each
MAKES = [partial(fused_moe, tiles=SMALL), fused_moe, fused_moe_torch]


def make_experts(num_experts, hidden, size, dtype=torch.float32):
    """gate_up [E, 2 F, M] and down [E, M, F], cut out of something wider."""
    gate_up = randn(num_experts, 2 * size, hidden + 3, dtype=dtype, seed=1)[:, :, :hidden] / hidden**0.5
    return gate_up, randn(num_experts, hidden, size, dtype=dtype, seed=2) / size**0.5


@st.composite
def routes(draw):
    """The number of tokens, and the expert of each of their rows: some experts get none, some most."""
    num_experts, k, num_tokens = draw(st.integers(1, 9)), draw(st.integers(1, 3)), draw(st.integers(0, 14))
    favourites = draw(st.lists(st.integers(0, num_experts - 1), min_size=1, max_size=3))
    expert = st.sampled_from(favourites) | st.integers(0, num_experts - 1)
    rows = draw(st.lists(expert, min_size=num_tokens * k, max_size=num_tokens * k))
    return num_tokens, k, num_experts, torch.tensor(rows, dtype=torch.int64, device=DEVICE)


@given(routes(), st.sampled_from([(16, 16), (24, 40), (33, 17)]), st.sampled_from(DTYPES), st.sampled_from(MAKES))
@settings(max_examples=30)
def test_every_row_gets_its_experts_answer_about_its_token(routes, sizes, dtype, make):
    num_tokens, k, num_experts, experts = routes
    x, (gate_up, down) = randn(num_tokens, sizes[0] + 5, dtype=dtype)[:, 2:-3], make_experts(num_experts, *sizes, dtype)
    order, starts = sort_by_expert(experts, num_experts)
    sources = order // k
    for expert in set(range(num_experts)) - set(experts.tolist()):
        gate_up[expert], down[expert] = torch.nan, torch.nan  # nobody's matrices are not read
    expected = fused_moe_spec(x.float(), gate_up.float(), down.float(), sources, starts)
    assert_close(guarded(make, x, gate_up, down, sources, starts), expected, largest=16)


def test_rows_are_sorted_by_expert_and_keep_their_order():
    order, starts = sort_by_expert(torch.tensor([2, 0, 0, 2, 3, 0], device=DEVICE), 4)
    assert order.tolist() == [1, 2, 5, 0, 3, 4]
    assert starts.tolist() == [0, 3, 3, 5, 6]
    order, starts = sort_by_expert(torch.empty(0, dtype=torch.int64, device=DEVICE), 3)
    assert (order.tolist(), starts.tolist()) == ([], [0, 0, 0, 0])


@pytest.mark.parametrize("make", MAKES)
def test_a_row_is_answered_the_same_alone_and_in_any_company(make):
    x, (gate_up, down) = randn(40, 24), make_experts(3, 24, 16)
    experts = torch.arange(40, device=DEVICE) % 2 * 2
    order, starts = sort_by_expert(experts, 3)
    together = make(x, gate_up, down, order, starts)
    for i in (0, 19, 20, 39):
        row = order[i : i + 1]
        alone = make(x, gate_up, down, row, sort_by_expert(experts[row], 3)[1])
        torch.testing.assert_close(alone[0], together[i], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("make", MAKES)
def test_what_is_no_number_stays_in_its_row(make):
    x, (gate_up, down) = randn(6, 24), make_experts(2, 24, 16)
    x[2] = torch.nan
    order, starts = sort_by_expert(torch.tensor([0, 1, 0, 1, 0, 1], device=DEVICE), 2)
    out = make(x, gate_up, down, order, starts)
    assert out.isnan().all(-1).tolist() == (order == 2).tolist()
    assert out.isnan().any(-1).tolist() == (order == 2).tolist()


@pytest.mark.skipif(DEVICE == "cuda", reason="borrows address space without memory behind it, which a GPU has not")
def test_offsets_into_the_matrices_are_64_bits_wide():
    x, (gate_up, down) = randn(3, 16, dtype=torch.float16), make_experts(3, 16, 16, torch.float16)
    far_gate_up, far_down = far_apart(1, 32, 16)[0].copy_(gate_up), far_apart(1, 16, 16)[0].copy_(down)
    order, starts = sort_by_expert(torch.tensor([2, 1, 2]), 3)
    assert_close(
        fused_moe(x, far_gate_up, far_down, order, starts),
        fused_moe_spec(x.float(), gate_up.float(), down.float(), order, starts),
        16,
    )


def test_as_many_rows_at_once_as_an_expert_has_on_average():
    for num_rows, rows in [(1, 16), (64, 16), (320, 64), (5000, 128)]:
        assert fused_moe_triton.choose_tiles(num_rows, 8, torch.bfloat16).rows == rows
    assert fused_moe_triton.choose_tiles(5000, 8, torch.float32).rows == 32


WRONG = {
    r"x has shape \(4, 8, 1\)": lambda x, g, d, o, s: (x[..., None], g, d, o, s),
    r"down has shape \(3, 7, 16\), expected \('any', 8, 'any'\)": lambda x, g, d, o, s: (x, g, d[:, :7], o, s),
    r"gate_up has shape \(3, 31, 8\), expected \(3, 32, 8\)": lambda x, g, d, o, s: (x, g[:, :31], d, o, s),
    "gate_up is torch.float16": lambda x, g, d, o, s: (x, g.half(), d, o, s),
    "down has stride 8": lambda x, g, d, o, s: (x, g, d.transpose(1, 2).contiguous().transpose(1, 2), o, s),
    "sources is torch.int32, expected torch.int64": lambda x, g, d, o, s: (x, g, d, o.int(), s),
    r"starts has shape \(3,\), expected \(4,\)": lambda x, g, d, o, s: (x, g, d, o, s[1:]),
}


@pytest.mark.parametrize("message", WRONG)
def test_what_does_not_fit_is_refused_by_name(message):
    order, starts = sort_by_expert(torch.tensor([0, 2, 2, 1], device=DEVICE), 3)
    with pytest.raises(ValueError, match=message):
        fused_moe(*WRONG[message](randn(4, 8), *make_experts(3, 8, 16), order, starts))
