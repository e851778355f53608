import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minipaged.kernels.rope import rope_cpu, rope_spec
from minipaged.kernels.rope_triton import rope
from tests.kernels.guard import assert_close, guarded, makes, randn

MAKES = makes(rope, rope_cpu)
in_float32 = pytest.mark.parametrize("make", [make for make, dtype in MAKES if dtype == torch.float32])


def angles(num_tokens, head_dim, dtype=torch.float32):
    turned = 100 * randn(num_tokens, 1, head_dim // 2, seed=1)
    return turned.cos().to(dtype), turned.sin().to(dtype)


@given(st.integers(0, 5), st.integers(1, 20), st.sampled_from([2, 16, 24, 80, 96, 128, 256]), st.sampled_from(MAKES))
@settings(max_examples=30)
def test_every_pair_is_turned_by_its_tokens_angle(num_tokens, num_heads, head_dim, make):
    rope, dtype = make
    x = randn(num_tokens, num_heads + 3, head_dim + 8, dtype=dtype)[:, 2 : num_heads + 2, :head_dim]
    cos, sin = angles(num_tokens, head_dim, dtype)
    assert_close(guarded(rope, x, cos, sin), rope_spec(x.float(), cos.float(), sin.float()), largest=8)


@in_float32
def test_turning_keeps_the_length_of_every_pair(make):
    x, (cos, sin) = randn(7, 3, 24), angles(7, 24)
    before, after = (t.unflatten(-1, (2, 12)).square().sum(-2) for t in (x, guarded(make, x, cos, sin)))
    assert_close(after, before, largest=32)


@in_float32
def test_what_is_no_number_stays_in_its_pair(make):
    x, (cos, sin) = randn(7, 3, 24), angles(7, 24)
    clean = guarded(make, x, cos, sin)
    x[3, 1, 5] = torch.nan
    out = guarded(make, x, cos, sin)
    assert out[3, 1, [5, 17]].isnan().all()
    out[3, 1, [5, 17]] = clean[3, 1, [5, 17]]
    assert torch.equal(out, clean)


def test_the_cpu_twin_is_as_exact_as_its_first_page_says():
    x, (cos, sin) = randn(50, 12, 64), angles(50, 64)
    exact = rope_spec(*(t.double() for t in (x, cos, sin)))
    larger = x.unflatten(-1, (2, 32)).abs().amax(-2).double()
    assert ((rope_cpu(x, cos, sin) - exact).abs() <= 2e-7 * torch.cat((larger, larger), dim=-1)).all()


def test_what_does_not_fit_is_refused_by_name():
    x, (cos, sin) = randn(7, 3, 24), angles(7, 24)
    with pytest.raises(ValueError, match="x has heads of 23 dimensions, expected pairs"):
        rope(x[..., :23], cos, sin)
    with pytest.raises(ValueError, match=r"sin has shape \(6, 1, 12\), expected \(7, 1, 12\)"):
        rope(x, cos, sin[:6])
    x, cos, sin = torch.zeros(7, 3, 24), *torch.zeros(2, 7, 1, 12)
    with pytest.raises(AssertionError, match="heads of 25 dimensions are not pairs"):
        rope_cpu(torch.zeros(7, 3, 25), cos, sin)
    with pytest.raises(AssertionError, match=r"sin torch.Size\(\[6, 1, 12\]\)"):
        rope_cpu(x, cos, sin[:6])
    with pytest.raises(AssertionError, match="float16 is not float32"):
        rope_cpu(x.half(), cos, sin)
