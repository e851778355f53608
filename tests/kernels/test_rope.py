import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minipaged.kernels.rope import rope, rope_spec
from tests.kernels.guard import DTYPES, assert_close, guarded, randn


def angles(num_tokens, head_dim, dtype):
    turned = 100 * randn(num_tokens, 1, head_dim // 2, seed=1)
    return turned.cos().to(dtype), turned.sin().to(dtype)


@given(st.integers(0, 5), st.integers(1, 20), st.sampled_from([2, 16, 24, 80, 96, 128, 256]), st.sampled_from(DTYPES))
@settings(max_examples=40)
def test_every_pair_is_turned_by_its_tokens_angle(num_tokens, num_heads, head_dim, dtype):
    x = randn(num_tokens, num_heads + 3, head_dim + 8, dtype=dtype)[:, 2 : num_heads + 2, :head_dim]
    cos, sin = angles(num_tokens, head_dim, dtype)
    assert_close(guarded(rope, x, cos, sin), rope_spec(x.float(), cos.float(), sin.float()), largest=8)


def test_turning_keeps_the_length_of_every_pair():
    x, (cos, sin) = randn(7, 3, 24), angles(7, 24, randn(1).dtype)
    before, after = (t.unflatten(-1, (2, 12)).square().sum(-2) for t in (x, guarded(rope, x, cos, sin)))
    assert_close(after, before, largest=32)


def test_what_does_not_fit_is_refused_by_name():
    x, (cos, sin) = randn(7, 3, 24), angles(7, 24, randn(1).dtype)
    with pytest.raises(ValueError, match="x has heads of 23 dimensions, expected pairs"):
        rope(x[..., :23], cos, sin)
    with pytest.raises(ValueError, match=r"sin has shape \(6, 1, 12\), expected \(7, 1, 12\)"):
        rope(x, cos, sin[:6])
