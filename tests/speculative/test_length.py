"""Fixed, or as far as guesses have been right; never further than engine and request allow."""

import pytest

from minipaged.batch import Chunk
from minipaged.sampling_params import SamplingParams
from minipaged.sequence import Sequence
from minipaged.speculative.length import AdaptiveLength, DraftLength


def sequence(wish=None):
    return Sequence("", [5], SamplingParams(num_speculative_tokens=wish), max_len=99)


def tell(length, seq, num_drafted, num_right):
    length.learn([Chunk(seq, 1, (7,) * num_drafted)], [[7] * (num_right + 1)])
    return length.of(seq)


@pytest.mark.parametrize("make", [DraftLength, AdaptiveLength])
@pytest.mark.parametrize(("wish", "expected"), [(None, 4), (0, 0), (2, 2), (9, 4)])
def test_a_request_may_ask_for_less_than_the_engine_allows(make, wish, expected):
    assert make(4).of(sequence(wish)) == expected


def test_a_fixed_length_learns_nothing():
    assert tell(DraftLength(4), sequence(), 4, 0) == 4


def test_an_adaptive_length_follows_what_was_right():
    length, seq, other = AdaptiveLength(4), sequence(), sequence()
    told = [tell(length, seq, *step) for step in [(4, 4), (4, 1), (2, 0), (1, 1), (2, 2), (4, 3)]]
    assert told == [4, 2, 1, 2, 4, 4]
    assert length.of(other) == 4, "each request learns for itself"


def test_a_guess_that_was_cut_short_and_right_is_no_reason_to_guess_less():
    length, seq = AdaptiveLength(4), sequence()
    assert tell(length, seq, 1, 1) == 4
    assert tell(length, seq, 0, 0) == 4


def test_a_length_of_its_own_goes_with_its_request():
    length, seq = AdaptiveLength(4), sequence()
    tell(length, seq, 4, 1)
    del seq
    assert len(length.lengths) == 0
