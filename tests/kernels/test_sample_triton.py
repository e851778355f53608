"""The Triton kernel against its specification; what it allocates is poisoned, the logits must stay as they are.

Where u or a cut's border lies within a hair of another token, either is right (asking.py); that this is rare, and that
random numbers are the library's bit for bit, is tested too."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st

from minipaged.kernels import draw_triton
from minipaged.kernels.sample_triton import sample
from minipaged.sampling import uniform
from tests.kernels.asking import Ask, answers, batches, draw_logits, run, to_asked, to_edits
from tests.kernels.guard import DEVICE
from tests.kernels.pool import far_apart

CORNERS = [-(2**63), -1, 0, 1, 2**31, 2**63 - 1]


def check(logits, asks, block=4096):
    tokens = run(logits, asks, block)
    for row, ask, token in zip(logits, asks, tokens, strict=True):
        assert token in answers(row, ask), ask
    return tokens


@given(batches())
@settings(max_examples=30)
def test_any_rows_get_tokens_that_the_specification_gives(batch):
    check(*batch)


def test_a_hair_from_a_border_is_rare():
    asks = [
        Ask(seed=seed, **cuts) for seed in range(20) for cuts in ({}, {"top_k": 7}, {"top_p": 0.9}, {"min_p": 0.05})
    ]
    ambiguous = [ask for ask in asks if len(answers(draw_logits("spread", 200, ask.seed), ask)) > 1]
    assert len(ambiguous) <= 1


def test_a_vocabulary_of_the_default_models_size():
    logits = torch.stack([draw_logits(kind, 49152, 3) for kind in ("spread", "spread", "steps", "flat")]).to(DEVICE)
    edits = {v: (v % 4 - 1, 0.5) for v in range(0, 49152, 8)}  # more than one block of them
    asks = [
        Ask(temperature=0),
        Ask(0.8, top_k=50, top_p=0.9, seed=7, repetition=1.3, frequency=0.2, presence=0.1, edits=edits),
        Ask(top_p=0.9, seed=8),
        Ask(min_p=0.1, top_k=40_000, seed=9),
    ]
    check(logits, asks)


@triton.jit
def uniform_kernel(p_seeds, p_positions, p_out, n, BN: tl.constexpr):
    o_n = tl.arange(0, BN)
    b_seed = tl.load(p_seeds + o_n, mask=o_n < n, other=0)
    b_position = tl.load(p_positions + o_n, mask=o_n < n, other=0)
    tl.store(p_out + o_n, draw_triton.uniform(b_seed, b_position), mask=o_n < n)


@given(st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**63 - 1)), max_size=20))
@settings(max_examples=12)
def test_random_numbers_are_the_librarys_bit_for_bit(drawn):
    pairs = drawn + [(seed, position) for seed in CORNERS for position in CORNERS if position >= 0]
    out = torch.full((len(pairs),), math.nan, dtype=torch.float64, device=DEVICE)
    seeds, positions = (torch.tensor(numbers, device=DEVICE) for numbers in zip(*pairs, strict=True))
    uniform_kernel[(1,)](seeds, positions, out, len(pairs), BN=64)
    assert out.tolist() == [uniform(seed, position) for seed, position in pairs]


def draws(logits, ask, num_draws=12):
    """The tokens at positions 0, 1, 2, ..."""
    return set(check(logits.expand(num_draws, -1), [replace(ask, position=i) for i in range(num_draws)], block=16))


@pytest.mark.parametrize(
    ("cut", "kept"),
    [({"top_k": 3}, {2, 5, 19}), ({"top_p": 0.5}, set(range(2, 20)) - {3}), ({"min_p": 1.0}, {2, 5, *range(19, 35)})],
)
def test_of_equally_likely_tokens_the_smaller_ids_stay(cut, kept):
    logits = torch.zeros(35, device=DEVICE)
    if cut == {"top_p": 0.5}:
        logits[:2], logits[3] = -math.inf, -math.inf  # 32 are left, in three blocks
        kept = {2, *range(4, 19)}
    else:
        logits[:2], logits[3:5], logits[6:19] = -1, -1, -1
    assert draws(logits, Ask(**cut)) <= kept


def test_what_top_p_is_a_share_of_is_what_top_k_and_min_p_left():
    logits = torch.tensor([0.35, 0.25, 0.2, 0.1, 0.06, 0.04], device=DEVICE).log()
    assert draws(logits, Ask(top_k=3, top_p=0.74)) == {0, 1}  # of the three's 0.8, 0.6 are 75 %
    assert draws(logits, Ask(min_p=0.25, top_p=0.88)) == {0, 1, 2}  # of the four's 0.9, 0.8 are 88.9 %
    assert draws(logits, Ask(min_p=0.5)) == {0, 1, 2}


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_a_row_of_nans_has_no_token_and_nobody_else_notices(temperature):
    logits = torch.stack([draw_logits("spread", 50, seed) for seed in range(5)]).to(DEVICE)
    asks = [Ask(temperature, top_k=9, seed=seed) for seed in range(5)]
    alone = [run(logits[i : i + 1], asks[i : i + 1])[0] for i in range(5)]
    logits[1, 33], logits[3] = math.nan, -math.inf
    assert run(logits, asks, block=16) == [alone[0], -1, alone[2], -1, alone[4]]


def test_an_infinite_logit_is_the_best_but_no_distribution():
    logits = torch.zeros(2, 20, device=DEVICE)
    logits[:, 17] = math.inf
    assert run(logits, [Ask(temperature=0), Ask()], block=16) == [17, -1]


@pytest.mark.parametrize("temperature", [1e-5, 1e-4])
def test_a_tiny_temperature_is_the_best_token(temperature):
    logits = torch.tensor([[1.0, 11.0625, 10.0], [-60000.0, 60000.0, 0.0], [-3e38, 3e38, 0.0]], device=DEVICE)
    with np.errstate(over="ignore"):  # 2 ^ -inf is the zero it ought to be
        assert run(logits, [Ask(temperature)] * 3) == [1, 1, 1]


@given(batches(max_rows=4))
@settings(max_examples=6)
def test_a_row_draws_the_same_alone_and_in_any_company(batch):
    logits, asks, block = batch
    together = run(logits, asks, block)
    assert [run(logits[i : i + 1], asks[i : i + 1], block)[0] for i in range(len(asks))] == together
    assert run(logits.flip(0), asks[::-1], block) == together[::-1]


def test_rows_may_lie_anywhere():
    wide = torch.full((3, 90), math.nan, device=DEVICE)
    logits = wide[:, 20:60].copy_(torch.stack([draw_logits("spread", 40, seed) for seed in range(3)]))
    asks = [Ask(0.0), Ask(top_k=5, edits={3: (1, 9.0)}), Ask(allowed=frozenset({0, 31, 32, 39}))]
    assert run(logits, asks) == run(logits.contiguous(), asks) == check(logits, asks, block=16)


@pytest.mark.skipif(DEVICE == "cuda", reason="borrows address space without memory behind it, which a GPU has not")
def test_offsets_into_the_logits_are_64_bits_wide():
    (logits,) = far_apart(1, 40, dtype=torch.float32)
    logits.copy_(torch.stack([draw_logits("spread", 40, seed) for seed in range(3)]))
    assert run(logits, [Ask(0.0)] * 3) == logits.argmax(-1).tolist()


def test_nothing_to_do_is_fine():
    assert run(torch.empty(0, 9, device=DEVICE), []) == []


WRONG = {
    "logits is torch.float16, expected torch.float32": lambda logits, a, e: (logits.half(), a, e),
    "logits has stride 3": lambda logits, a, e: (logits.T.contiguous().T, a, e),
    "no token to choose": lambda logits, a, e: (logits[:, :0], a, e),
    r"top_k has shape \(2,\), expected \(3,\)": lambda logits, a, e: (logits, a._replace(top_k=a.top_k[:2]), e),
    "seeds is torch.int32, expected torch.int64": lambda logits, a, e: (logits, a._replace(seeds=a.seeds.int()), e),
    "top_p is torch.float32, expected torch.float64": lambda logits, a, e: (
        logits,
        a._replace(top_p=a.top_p.float()),
        e,
    ),
    r"starts has shape \(3,\), expected \(4,\)": lambda logits, a, e: (logits, a, e._replace(starts=e.starts[1:])),
    r"counts has shape \(1,\), expected \(2,\)": lambda logits, a, e: (logits, a, e._replace(counts=e.counts[1:])),
    "presence is torch.float32": lambda logits, a, e: (logits, a, e._replace(presence=e.presence.float())),
}


@pytest.mark.parametrize("message", WRONG)
def test_what_does_not_fit_is_refused_by_name(message):
    asks = [Ask(edits={1: (0, 0.0), 2: (1, 0.0)}), Ask(), Ask()]
    logits, asked, edits = WRONG[message](torch.zeros(3, 40, device=DEVICE), to_asked(asks), to_edits(asks))
    with pytest.raises(ValueError, match=message):
        sample(logits, asked, edits)


def test_a_mask_that_does_not_fit_is_refused_by_name():
    logits, allowed = torch.zeros(3, 40, device=DEVICE), torch.zeros(3, 1, dtype=torch.int32, device=DEVICE)
    with pytest.raises(ValueError, match=r"allowed has shape \(3, 1\), expected \(3, 2\)"):
        sample(logits, to_asked([Ask()] * 3), allowed=allowed)
