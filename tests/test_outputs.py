"""An output is a copy of what a sequence has, and its text leaves out the token that stopped it."""

import pytest

from minipaged.outputs import report
from minipaged.sampling_params import SamplingParams
from minipaged.sequence import Sequence


def letters(token_ids):
    return "".join(chr(96 + token_id) for token_id in token_ids)


def sequence():
    return Sequence("x", [5, 6], SamplingParams(stop_token_ids=(4,)), 6, frozenset({26}))


def test_outputs_are_cumulative_copies():
    seq = sequence()
    seq.append(1)
    first = report(seq, letters)
    assert not seq.has_news
    seq.append(2)
    second = report(seq, letters)
    assert [output.outputs[0].token_ids for output in (first, second)] == [[1], [1, 2]]
    assert (second.request_id, second.prompt_token_ids, second.finished) == ("x", [5, 6], False)
    assert (second.outputs[0].index, second.num_preemptions, second.num_cached_tokens) == (0, 0, 0)


@pytest.mark.parametrize(("last", "text", "reason"), [(26, "ab", "stop"), (4, "ab", "stop"), (3, "abc", None)])
def test_the_token_that_stopped_it_is_in_token_ids_and_not_in_text(last, text, reason):
    seq = sequence()
    for token in (1, 2, last):
        seq.append(token)
    (said,) = report(seq, letters).outputs
    assert (said.token_ids, said.text, said.finish_reason) == ([1, 2, last], text, reason)


def test_a_failure_says_what_happened():
    seq = sequence()
    seq.fail("the model's logits are NaN at position 1")
    output = report(seq, letters)
    assert (output.finished, output.error) == (True, "the model's logits are NaN at position 1")
    assert output.outputs[0].text == ""


def test_text_is_decoded_when_somebody_reads_it():
    decoded = []
    (said,) = report(sequence(), lambda token_ids: decoded.append(token_ids) or "").outputs
    assert decoded == []
    assert said.text == said.text == ""
    assert decoded == [[]]
