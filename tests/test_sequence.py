"""A sequence grows by a token, and ends when one of them says so: EOS first, then a stop token, then the length."""

import pytest

from minipaged.sampling_params import SamplingParams
from minipaged.sequence import Score, Sequence, choice_seed

EOS = frozenset({0, 1})


def sequence(max_len=10, **fields):
    return Sequence("0", [5, 6, 7], SamplingParams(**fields), max_len, EOS)


def test_pending_is_what_is_not_yet_computed():
    seq = sequence()
    assert seq.num_pending == 3
    seq.num_computed_tokens = 3
    seq.append(8)
    assert (seq.num_pending, seq.num_prompt_tokens, seq.finished) == (1, 3, False)


@pytest.mark.parametrize("eos", sorted(EOS))
def test_any_eos_of_the_set_ends_it_and_stays_in_its_tokens(eos):
    seq = sequence()
    seq.append(eos)
    assert (seq.tokens[-1], seq.finish_reason, seq.stop_reason) == (eos, "stop", None)


def test_a_stop_token_ends_it_and_is_the_reason():
    seq = sequence(stop_token_ids=(8, 9))
    seq.append(9)
    assert (seq.tokens[-1], seq.finish_reason, seq.stop_reason) == (9, "stop", 9)


def test_ignoring_eos_does_not_ignore_stop_tokens():
    seq = sequence(ignore_eos=True, stop_token_ids=(9,))
    for token in (0, 1):
        seq.append(token)
        assert not seq.finished
    seq.append(9)
    assert seq.finish_reason == "stop"


def test_an_eos_that_is_also_a_stop_token_stops_even_when_eos_is_ignored():
    first, second = sequence(stop_token_ids=(0,)), sequence(stop_token_ids=(0,), ignore_eos=True)
    first.append(0)
    second.append(0)
    assert [(seq.finish_reason, seq.stop_reason) for seq in (first, second)] == [("stop", None), ("stop", 0)]


def test_the_last_token_that_fits_ends_it_with_length_unless_it_stops_by_itself():
    long, stopped = sequence(max_len=4), sequence(max_len=4)
    long.append(8)
    stopped.append(0)
    assert (long.finish_reason, stopped.finish_reason) == ("length", "stop")


def test_news_is_a_token_or_an_end_that_nobody_was_told():
    seq = sequence()
    assert not seq.has_news
    seq.append(8)
    assert seq.has_news
    seq.num_reported = len(seq.tokens)
    assert not seq.has_news
    seq.fail("the model's logits are NaN")
    assert (seq.has_news, seq.finish_reason) == (True, "error")
    seq.num_reported = seq.num_events
    assert not seq.has_news, "an end is news once"


def test_a_sibling_begins_alike_and_shares_nothing():
    first = sequence()
    second = first.sibling(1)
    assert (second.tokens, second.num_prompt_tokens, second.max_len, second.choice) == ([5, 6, 7], 3, 10, 1)
    second.append(8)
    second.block_table.append(4)
    second.block_names.append(b"name")
    assert (first.tokens, first.block_table, first.block_names) == ([5, 6, 7], [], [])


@pytest.mark.parametrize("seed", [0, 1, -1, 2**63 - 1, -(2**63)])
def test_the_first_choice_has_the_requests_seed_and_every_other_one_of_its_own(seed):
    seeds = [choice_seed(seed, choice) for choice in range(128)]
    assert seeds[0] == seed
    assert len(set(seeds)) == 128
    assert all(0 <= derived < 2**63 for derived in seeds[1:]), "a seed that somebody else may ask for"
    assert not {choice_seed(seed ^ 1, choice) for choice in range(128)} & set(seeds)


def test_sequences_are_persons_not_values():
    assert sequence() != sequence()
    assert len({sequence(), sequence()}) == 2


def test_the_first_choice_alone_has_its_prompt_scored_and_may_skip_what_is():
    first = sequence(prompt_logprobs=1)
    assert (first.num_unscored, first.num_adoptable) == (2, 0)
    first.prompt_scores += [{6: Score(-1.0, 1)}]
    assert (first.num_unscored, first.num_adoptable) == (1, 1)
    first.prompt_scores += [{7: Score(-1.0, 1)}]
    assert (first.num_unscored, first.num_adoptable) == (0, 2)
    second = sequence(prompt_logprobs=1).sibling(1)
    assert (second.num_unscored, second.num_adoptable) == (0, 2)
    assert (sequence().num_unscored, sequence().num_adoptable) == (0, 2)
