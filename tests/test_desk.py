"""Whatever could not run alone is refused with its numbers; an id belongs to one live request at a time."""

import numpy as np
import pytest

from minipaged.config import EngineConfig
from minipaged.desk import FrontDesk
from minipaged.detokenizer import Detokenizer
from minipaged.sampling_params import SamplingParams
from minipaged.sequence import choice_seed
from minipaged.vocabulary import Vocabulary

CONFIG = EngineConfig(max_model_len=32, num_blocks=4, block_size=4)


def open_desk(config=CONFIG):
    return FrontDesk(config, Vocabulary(64, frozenset({0}), None, Detokenizer(None), None))


def open_one(desk, prompt, params=None, request_id=None):
    """The only sequence of a request for one answer."""
    (seq,) = desk.open(prompt, params or SamplingParams(), request_id)
    return seq


@pytest.mark.parametrize(
    ("prompt", "error", "message"),
    [
        ([], ValueError, "the prompt is empty"),
        ("hello", TypeError, "list of token ids, not 'hello'"),
        (None, TypeError, "list of token ids, not None"),
        ([[]], TypeError, r"prompt_token_ids\[0\] must be a whole number"),
        ([[-1]], TypeError, r"prompt_token_ids\[0\] must be a whole number"),
        ([5, 64], ValueError, r"prompt_token_ids\[1\] must be a whole number in \[0, 63\], not 64"),
        ([-1], ValueError, r"prompt_token_ids\[0\] must be a whole number in \[0, 63\], not -1"),
        ([1.0], TypeError, r"prompt_token_ids\[0\]"),
        ([True], TypeError, r"prompt_token_ids\[0\]"),
        ([5] * 32, ValueError, "32 tokens; max_model_len 32 leaves room for 31"),
        ([5] * 17, ValueError, "17 tokens needs 5 blocks of 4; the whole pool has 4"),
    ],
)
def test_a_prompt_that_could_not_run_alone_is_refused(prompt, error, message):
    desk = open_desk()
    with pytest.raises(error, match=message):
        desk.open(prompt, SamplingParams(max_tokens=1))
    assert not desk.live


def test_prompt_and_answer_together_must_fit_and_the_message_has_all_three_numbers():
    desk = open_desk()
    desk.open([5] * 12, SamplingParams(max_tokens=20))
    with pytest.raises(ValueError, match=r"max_tokens 21 \+ a prompt of 12 = 33 tokens exceed max_model_len 32"):
        desk.open([5] * 12, SamplingParams(max_tokens=21))


@pytest.mark.parametrize(("max_tokens", "max_len"), [(3, 8), (None, 17), (16, 17)])
def test_no_max_tokens_means_as_far_as_model_and_pool_allow(max_tokens, max_len):
    assert open_one(open_desk(), [5] * 5, SamplingParams(max_tokens=max_tokens)).max_len == max_len


@pytest.mark.parametrize("params", [None, {"max_tokens": 3}, SamplingParams])
def test_params_are_sampling_params(params):
    with pytest.raises(TypeError, match="params must be SamplingParams"):
        open_desk().open([5], params)


@pytest.mark.parametrize("priority", [1.5, "high", None])
def test_a_priority_is_a_whole_number(priority):
    with pytest.raises(TypeError, match="priority"):
        open_desk().open([5], SamplingParams(), priority=priority)


def test_a_live_id_is_refused_and_free_again_after_its_end():
    desk = open_desk()
    seq = open_one(desk, [5], request_id="a")
    with pytest.raises(ValueError, match="'a' belongs to a request that is still running"):
        desk.open([6], SamplingParams(), "a")
    assert desk.live == {"a": [seq]}
    seq.append(0)
    assert [output.finished for output in desk.report([seq])] == [True]
    assert open_one(desk, [6], request_id="a") is not seq


def test_an_id_is_in_use_as_long_as_one_of_its_choices_lives():
    desk = open_desk()
    first, second, third = desk.open([5], SamplingParams(n=3), "a")
    for seq in (second, first, third):
        with pytest.raises(ValueError, match="'a' belongs to a request that is still running"):
            desk.open([6], SamplingParams(), "a")
        seq.append(0)
        assert [output.finished for output in desk.report([first, second, third])] == [seq is third]
    assert len(desk.open([6], SamplingParams(n=2), "a")) == 2


def test_choices_have_indices_and_seeds_of_their_own_and_the_rest_in_common():
    params = SamplingParams(n=3, seed=7, max_tokens=9)
    seqs = open_desk().open([5, 6], params, "a", priority=np.int64(2), cache_salt="x")
    assert [(seq.choice, seq.seed) for seq in seqs] == [(i, choice_seed(7, i)) for i in range(3)]
    for seq in seqs:
        assert (seq.request_id, seq.tokens, seq.max_len, seq.arrival) == ("a", [5, 6], 11, 0)
        assert (seq.priority, seq.cache_salt, seq.eos_token_ids) == (2, "x", frozenset({0}))
        assert type(seq.priority) is int


def test_how_many_answers_others_want_changes_nobodys_id_or_seed():
    modest, greedy = open_desk(), open_desk()
    modest.open([5], SamplingParams())
    greedy.open([5], SamplingParams(n=100))
    ours, theirs = open_one(modest, [5]), open_one(greedy, [5])
    assert (ours.request_id, ours.arrival, ours.seed) == (theirs.request_id, theirs.arrival, theirs.seed)


def test_seeds_that_nobody_chose_differ_among_choices_and_requests():
    desk = open_desk()
    seqs = [seq for _ in range(20) for seq in desk.open([5], SamplingParams(n=5, max_tokens=2))]
    assert len({seq.seed for seq in seqs}) == 100
    assert seqs[0].seed == open_one(open_desk(), [5]).seed, "a request's first choice draws what it would draw alone"


def test_whoever_is_closed_is_forgotten_with_all_choices_and_those_who_had_not_ended_are_handed_back():
    desk = open_desk()
    first, second, third = desk.open([5], SamplingParams(n=3), "a")
    second.append(0)
    desk.report([first, second, third])
    assert desk.close("a") == [first, third]
    assert (desk.close("a"), desk.close("nobody"), desk.live) == ([], [], {})


def test_ids_that_nobody_chose_are_numbers_that_nobody_has():
    desk = open_desk()
    desk.open([5], SamplingParams(), "1")
    assert [open_one(desk, [5]).request_id for _ in range(3)] == ["2", "3", "4"]
    other = open_desk()
    other.open([5], SamplingParams(), "2")
    assert [open_one(other, [5]).request_id for _ in range(2)] == ["1", "3"]


def test_a_refused_request_changes_nothing_for_those_who_come_after():
    calm, busy = open_desk(), open_desk()
    for desk in (calm, busy):
        desk.open([5], SamplingParams(), "a")
    for bad in (([], SamplingParams(), "b"), ([5], SamplingParams(), "a")):
        with pytest.raises(ValueError):
            busy.open(*bad)
    ours, theirs = (open_one(desk, [5]) for desk in (calm, busy))
    assert (ours.request_id, ours.arrival, ours.seed) == (theirs.request_id, theirs.arrival, theirs.seed)


def test_seeds_that_nobody_chose_differ_and_come_from_the_engines_seed():
    first, second = (open_one(open_desk(), [5]).seed for _ in range(2))
    desk = open_desk(EngineConfig(max_model_len=32, num_blocks=4, block_size=4, seed=1))
    assert first == second != open_one(desk, [5]).seed
    assert len({open_one(desk, [5]).seed for _ in range(50)}) == 50
    assert open_one(desk, [5], SamplingParams(seed=7)).seed == 7


def test_a_prompt_is_copied():
    prompt = [5, 6]
    seq = open_one(open_desk(), prompt)
    prompt.append(7)
    assert seq.tokens == [5, 6]


def test_only_news_is_reported_and_only_to_those_still_here():
    desk = open_desk()
    quiet, loud, gone = (open_one(desk, [5], request_id=name) for name in ("quiet", "loud", "gone"))
    for seq in (loud, gone):
        seq.append(9)
    del desk.live["gone"]
    assert [output.request_id for output in desk.report([quiet, loud, gone])] == ["loud"]
    assert desk.report([quiet, loud, gone]) == []


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"logit_bias": {"64": 1}}, r"^logit_bias token id must be a whole number in \[0, 63\], not 64$"),
        ({"logit_bias": {3: 1, 10**9: 1}}, r"^logit_bias token id .* not 1000000000$"),
        ({"allowed_token_ids": [3, 64]}, r"^allowed_token_ids token id must be a whole number in \[0, 63\], not 64$"),
        ({"stop_token_ids": [64]}, r"^stop_token_ids token id must be a whole number in \[0, 63\], not 64$"),
        ({"logprobs": 65}, r"^logprobs must be a whole number in \[-1, 64\], not 65$"),
        ({"prompt_logprobs": 65}, r"^prompt_logprobs must be a whole number in \[-1, 64\], not 65$"),
        ({"min_tokens": 1, "allowed_token_ids": [0, 7], "stop_token_ids": [7]}, "^min_tokens 1 holds back all that"),
        ({"min_tokens": 2, "stop_token_ids": range(64)}, "^min_tokens 2 holds back all that may be said"),
    ],
)
def test_params_that_name_tokens_there_are_not_are_refused_with_the_vocabulary(fields, message):
    desk = open_desk()
    with pytest.raises(ValueError, match=message):
        desk.open([5], SamplingParams(**fields))
    assert not desk.live


def test_params_may_name_every_token_there_is():
    fields = {"stop_token_ids": range(64), "allowed_token_ids": range(64), "logit_bias": dict.fromkeys(range(64), 1)}
    open_desk().open([5], SamplingParams(**fields, logprobs=64, prompt_logprobs=-1))
    open_desk().open([5], SamplingParams(allowed_token_ids=[0]))
    open_desk().open([5], SamplingParams(allowed_token_ids=[0, 1], min_tokens=3))
    open_desk().open([5], SamplingParams(stop_token_ids=range(63), min_tokens=3))
