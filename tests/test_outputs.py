"""An output is a copy of what a request's choices have; a text leaves out the token that stopped it."""

import pytest

from minipaged.detokenizer import Detokenizer
from minipaged.outputs import Logprob, report
from minipaged.sampling_params import SamplingParams
from minipaged.sequence import Score, Sequence

from .fake_model import letters as make_letters
from .tiny_tokenizer import byte_fallback_tokenizer

letters = make_letters(27)


def sequence():
    return Sequence("x", [5, 6], SamplingParams(stop_token_ids=(4,)), 6, frozenset({26}))


def test_outputs_are_cumulative_copies():
    seq = sequence()
    seq.append(1)
    first = report([seq], letters)
    assert not seq.has_news
    seq.append(2)
    second = report([seq], letters)
    assert [output.outputs[0].token_ids for output in (first, second)] == [[1], [1, 2]]
    assert (second.request_id, second.prompt_token_ids, second.finished) == ("x", [5, 6], False)
    assert (second.outputs[0].index, second.num_preemptions, second.num_cached_tokens) == (0, 0, 0)


@pytest.mark.parametrize(("last", "text", "reason"), [(26, "bc", "stop"), (4, "bc", "stop"), (3, "bcd", None)])
def test_the_token_that_stopped_it_is_in_token_ids_and_not_in_text(last, text, reason):
    seq = sequence()
    for token in (1, 2, last):
        seq.append(token)
    (said,) = report([seq], letters).outputs
    assert (said.token_ids, said.text, said.finish_reason) == ([1, 2, last], text, reason)


def test_a_failure_says_what_happened():
    seq = sequence()
    seq.fail("the model's logits are NaN at position 1")
    output = report([seq], letters)
    assert (output.finished, output.error) == (True, "the model's logits are NaN at position 1")
    assert output.outputs[0].text == ""


def test_every_choice_is_told_of_whether_it_has_news_or_not():
    choices = [first := sequence(), second := first.sibling(1), third := first.sibling(2)]
    first.append(1)
    third.append(4)
    output = report(choices, letters)
    assert [said.index for said in output.outputs] == [0, 1, 2]
    assert [(said.token_ids, said.finish_reason) for said in output.outputs] == [([1], None), ([], None), ([4], "stop")]
    assert not any(seq.has_news for seq in choices)
    second.append(4)
    assert [seq.has_news for seq in choices] == [False, True, False], "whoever had ended has no news"


def test_a_request_has_ended_when_all_its_choices_have():
    choices = [first := sequence(), second := first.sibling(1)]
    first.append(4)
    assert not report(choices, letters).finished
    second.fail("the model's logits are NaN at position 1")
    output = report(choices, letters)
    assert (output.finished, output.error) == (True, "the model's logits are NaN at position 1")
    assert [said.finish_reason for said in output.outputs] == ["stop", "error"]


def test_a_request_found_what_its_first_choice_found_and_gave_way_as_often_as_all_did():
    choices = [first := sequence(), second := first.sibling(1)]
    first.num_cached_tokens, second.num_cached_tokens = 0, 4
    first.num_preemptions, second.num_preemptions = 1, 2
    output = report(choices, letters)
    assert (output.num_cached_tokens, output.num_preemptions) == (0, 3)
    assert [said.num_cached_tokens for said in output.outputs] == [0, 4]


def test_text_is_decoded_when_somebody_reads_it():
    decoded = []
    (said,) = report([sequence()], lambda token_ids, *options, **more: decoded.append(token_ids) or "").outputs
    assert decoded == []
    assert said.text == said.text == ""
    assert decoded == [[]]


def test_logprobs_have_the_text_of_their_tokens_and_add_up():
    seq = Sequence("x", [5, 6], SamplingParams(logprobs=1, prompt_logprobs=0), 9)
    assert report([seq], letters).prompt_logprobs is None, "not before all of them are known"
    seq.prompt_scores.append({6: Score(-3.0, 4)})
    for token in (1, 2):
        seq.append(token)
        seq.scores.append({token: Score(-0.5 * token, token), 1: Score(-0.5, 1)})
    output = report([seq], letters)
    seq.scores.append({3: Score(-9.0, 9)})
    (said,) = output.outputs
    likeliest = Logprob(-0.5, 1, "b")
    assert said.logprobs == [{1: likeliest}, {2: Logprob(-1.0, 2, "c"), 1: likeliest}]
    assert said.cumulative_logprob == -1.5
    assert output.prompt_logprobs == [None, {6: Logprob(-3.0, 4, "g")}]


def test_whoever_asked_for_no_logprobs_has_none():
    output = report([sequence()], letters)
    assert (output.prompt_logprobs, output.outputs[0].logprobs, output.outputs[0].cumulative_logprob) == (None,) * 3


def test_in_logprobs_special_tokens_have_a_text_and_in_the_answer_they_have_none():
    tokenizer = byte_fallback_tokenizer()
    end, word = tokenizer.token_to_id("</s>"), tokenizer.token_to_id("er")
    seq = Sequence("x", [5, 6], SamplingParams(logprobs=0, ignore_eos=True), 9)
    for token in (word, end):
        seq.append(token)
        seq.scores.append({token: Score(-1.0, 1)})
    (said,) = report([seq], Detokenizer(tokenizer)).outputs
    assert [one.decoded_token for entry in said.logprobs for one in entry.values()] == ["er", "</s>"]
    assert said.text == "er"
