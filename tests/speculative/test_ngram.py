"""The longest end of the text that stood somewhere before says what follows."""

from random import Random

import pytest

from levels import load
from minipaged.config import EngineConfig
from minipaged.sampling_params import SamplingParams
from minipaged.sequence import Sequence
from minipaged.speculative.length import DraftLength
from minipaged.speculative.ngram import NgramDrafter, NgramIndex, choose_sizes

from ..fake_model import FakeModel


def follow(tokens, shortest, longest, limit):
    index = NgramIndex(shortest, longest)
    index.update(tokens)
    return index.follow(tokens, limit)


def by_hand(tokens, shortest, longest, limit):
    """The same, as its definition says: for each size, the first place from the left."""
    for size in choose_sizes(shortest, longest):
        for end in range(size, len(tokens)):
            if tokens[end - size : end] == tokens[-size:] and len(tokens) >= size:
                return tuple(tokens[end : end + limit])
    return ()


@pytest.mark.parametrize(
    ("tokens", "shortest", "longest", "limit", "expected"),
    [
        ([1, 3, 6, 2, 3, 4, 1, 2, 3], 2, 2, 3, (4, 1, 2)),
        ([1, 3, 6, 2, 3, 4, 1, 2, 3], 1, 1, 3, (6, 2, 3)),
        ([1, 2, 9, 5, 1, 2, 8, 5, 1, 2], 2, 3, 1, (8,)),  # "5 1 2" before "1 2", though that came first
        ([7, 7, 7, 7], 2, 4, 3, (7,)),  # "7 7 7" was followed by one token so far
        ([1, 2, 3], 1, 4, 3, ()),
        ([5], 2, 4, 3, ()),
        ([5], 1, 4, 3, ()),
        ([5, 5], 1, 4, 3, (5,)),
    ],
)
def test_what_followed_the_longest_earlier_match(tokens, shortest, longest, limit, expected):
    assert follow(tokens, shortest, longest, limit) == expected == by_hand(tokens, shortest, longest, limit)


@pytest.mark.parametrize("seed", range(20))
def test_an_index_that_grows_with_its_text_finds_what_a_search_would(seed):
    rng = Random(seed)
    tokens, (shortest, longest) = [], sorted((rng.randint(1, 4), rng.randint(1, 4)))
    index = NgramIndex(shortest, longest)
    for _ in range(40):
        tokens += [rng.randrange(3) for _ in range(rng.randint(1, 3))]
        index.update(tokens)
        assert index.follow(tokens, 4) == by_hand(tokens, shortest, longest, 4)


@pytest.mark.parametrize(
    ("shortest", "longest", "expected"),
    [
        (2, 4, [4, 3, 2]),
        (3, 3, [3]),
        (1, 40, [40, 33, *range(17, 0, -1)]),
        (9, 10**9, [10**9, *(9 + (16 << i) for i in range(25, -1, -1)), *range(24, 8, -1)]),
    ],
)
def test_few_sizes_are_one_after_the_other_and_of_many_only_doublings(shortest, longest, expected):
    assert choose_sizes(shortest, longest) == expected


def test_long_n_grams_are_found_and_cost_no_more_than_short_ones():
    rng = Random(0)
    text = [rng.randrange(9) for _ in range(3000)]
    tokens = [*text, 100, 101, *text[500:560]]  # forty of them are there, and so are twenty; the first is meant
    assert follow(tokens, 1, 40, 3) == tuple(text[560:563]) == by_hand(tokens, 1, 40, 3)
    index = NgramIndex(1, 10_000)
    index.update(tokens)
    assert len(index.followed_at) <= len(tokens) * 27


def test_the_end_of_a_text_is_looked_up_once_a_step(monkeypatch):
    looked_up, follow = [], NgramIndex.follow
    monkeypatch.setattr(NgramIndex, "follow", lambda self, *args: looked_up.append(args) or follow(self, *args))
    engine = load(5).Engine(EngineConfig(num_blocks=64, max_model_len=64, num_speculative_tokens=3), FakeModel())
    engine.add_request([2, 3, 2, 3], SamplingParams(temperature=0, max_tokens=9, ignore_eos=True))
    while engine.has_unfinished_requests():
        engine.step()
    assert any(step.draft_tokens for step in engine.trace.steps)
    assert len(looked_up) <= len(engine.trace.steps)


def test_every_sequence_has_an_index_of_its_own_and_it_goes_with_it():
    drafter = NgramDrafter(1, 2, DraftLength(4))
    first = Sequence("a", [1, 2, 3, 1], SamplingParams(), max_len=99)
    second = Sequence("b", [3, 1], SamplingParams(), max_len=99)
    assert (drafter.follow(first, 2), drafter.follow(second, 2)) == ((2, 3), ())
    assert (drafter.reach(first, 4), drafter.reach(first, 1), drafter.reach(second, 4)) == (3, 1, 0)
    del first
    assert len(drafter.indexes) == 1
