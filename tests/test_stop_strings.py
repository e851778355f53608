"""A stop string is found wherever tokens end, cuts the text at its first occurrence, and is never shown by halves."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from levels import NAMES, load
from minipaged.config import EngineConfig
from minipaged.desk import FrontDesk
from minipaged.detokenizer import Detokenizer
from minipaged.outputs import report
from minipaged.sampling_params import SamplingParams
from minipaged.sequence import Sequence
from minipaged.stop_strings import StopStrings, count_begun
from minipaged.vocabulary import Vocabulary

from .drafters import DRAFTERS
from .fake_model import FakeModel, answers_alone
from .stopping import judge
from .tiny_tokenizer import byte_fallback_tokenizer

LEVELS = range(1, len(NAMES) + 1)


class Spelled:
    """Stands in for a TextStream: tokens are the strings themselves."""

    def __init__(self, skip_special_tokens):
        self.token_ids, self.text, self.rest = [], "", ""

    def append(self, pieces):
        self.token_ids += pieces
        self.text += "".join(pieces)

    def flush(self):
        return ""


def watch(pieces, **fields):
    """What is shown after each piece up to the one that ends it, and the string that did."""
    stops, said = StopStrings(SamplingParams(max_tokens=99, **fields), Spelled), []
    for piece in pieces:
        found = stops.completed_by(piece)
        said.append(stops.shown)
        if found:
            return said, found
    return said, None


def test_stop_strings_do_what_they_mean():
    judge()


@pytest.mark.parametrize(
    ("pieces", "stop", "shown", "found"),
    [
        (["DEF", "G", "HI", "J"], "DEFGHIJ", ["", "", "", ""], "DEFGHIJ"),
        (["in", " Paris"], "Pari", ["in", "in "], "Pari"),
        (["a", "b", "a", "c"], "abab", ["", "", "", "abac"], None),
        (["aab"], "ab", ["a"], "ab"),
        (["a", "a", "b"], "ab", ["", "a", "a"], "ab"),
        (["x", "STOP here STOP"], "STOP", ["x", "x"], "STOP"),
        (["one", "."], "\n", ["one", "one."], None),
    ],
)
def test_neither_the_stop_string_nor_its_beginning_is_shown(pieces, stop, shown, found):
    assert watch(pieces, stop=stop) == (shown, found)


def test_of_two_complete_at_one_token_the_one_that_begins_first():
    assert watch(["x", "abcd"], stop=["cd", "bcd", "d"]) == (["x", "xa"], "bcd")
    assert watch(["x", "abcd"], stop=["abcd", "ab"]) == (["x", "x"], "ab"), "and of two that begin together the shorter"


def test_but_one_that_is_complete_earlier_wins():
    assert watch(["abc", "d"], stop=["abcd", "c"]) == (["ab"], "c")


def test_it_may_be_part_of_the_text():
    assert watch(["aS", "TOPb"], stop="STOP", include_stop_str_in_output=True) == (["aS", "aSTOP"], "STOP")


def test_it_is_looked_for_from_the_min_tokens_th_token_on():
    assert watch(["a", "STOP", "b"], stop="STOP", min_tokens=2) == (["a", "a"], "STOP")
    assert watch(["a", "STOP", "b"], stop="STOP", min_tokens=3) == (["a", "aSTOP", "aSTOPb"], None)
    assert watch(["a", "ST", "OP"], stop="STOP", min_tokens=3) == (["a", "a", "a"], "STOP"), "it may begin before"


def test_half_a_character_is_part_of_no_stop_string_yet():
    tokenizer = byte_fallback_tokenizer()
    stops = StopStrings(SamplingParams(stop="🔥"), Detokenizer(tokenizer).stream)
    token_ids = [tokenizer.token_to_id(name) for name in ("▁x", "<0xF0>", "<0x9F>", "<0x94>", "<0xA5>")]
    assert [stops.completed_by(token_id) for token_id in token_ids] == [None] * 4 + ["🔥"]
    assert stops.reader(True) == "x"


def test_what_is_still_open_at_the_end_belongs_to_the_text():
    tokenizer = byte_fallback_tokenizer()
    stops = StopStrings(SamplingParams(stop="xx"), Detokenizer(tokenizer).stream)
    for name in ("▁Hello", "▁x", "<0xF0>"):
        assert stops.completed_by(tokenizer.token_to_id(name)) is None
    assert (stops.shown, stops.reader(True)) == ("Hello ", "Hello x\N{REPLACEMENT CHARACTER}")


@pytest.mark.parametrize(
    ("last", "stop", "text", "reason"),
    [
        ("▁x", "\N{REPLACEMENT CHARACTER}", "Hello x", ("length", None)),
        ("<0xF0>", "\N{REPLACEMENT CHARACTER}", "Hello", ("stop", "\N{REPLACEMENT CHARACTER}")),
        ("<0xF0>", "o\N{REPLACEMENT CHARACTER}", "Hell", ("stop", "o\N{REPLACEMENT CHARACTER}")),
        ("<0xF0>", "xx", "Hello\N{REPLACEMENT CHARACTER}", ("length", None)),
    ],
)
def test_what_is_broken_at_the_end_may_be_a_stop_string(last, stop, text, reason):
    decode = Detokenizer(byte_fallback_tokenizer())
    params = SamplingParams(stop=stop, max_tokens=2)
    seq = Sequence("x", [5], params, 3, frozenset(), stops=StopStrings(params, decode.stream))
    for name in ("▁Hello", last):
        seq.append(decode.tokenizer.token_to_id(name))
    (said,) = report([seq], decode).outputs
    assert (said.text, (said.finish_reason, said.stop_reason)) == (text, reason)


def test_it_ends_the_text_before_eos_does_and_after_min_tokens():
    decode = Detokenizer(byte_fallback_tokenizer())
    half, eos = decode.tokenizer.token_to_id("<0xF0>"), 2
    for least, reason in ((0, "\N{REPLACEMENT CHARACTER}"), (2, None)):
        params = SamplingParams(stop="\N{REPLACEMENT CHARACTER}", min_tokens=least)
        seq = Sequence("x", [5], params, 30, frozenset({eos}), stops=StopStrings(params, decode.stream))
        seq.append(half)
        seq.append(eos)
        (said,) = report([seq], decode).outputs
        assert (said.finish_reason, said.stop_reason) == ("stop", reason)
        assert said.text == ("" if reason else "\N{REPLACEMENT CHARACTER}")


def test_an_output_stays_what_it_was_also_if_it_is_declared_to_be_over():
    decode = Detokenizer(byte_fallback_tokenizer())
    params = SamplingParams(stop="🔥", max_tokens=9)
    seq = Sequence("x", [5], params, 10, frozenset(), stops=StopStrings(params, decode.stream))
    outputs = []
    for name in ("▁Hello", "<0xF0>", "<0x9F>", "<0x94>", "<0xA5>"):
        seq.append(decode.tokenizer.token_to_id(name))
        outputs.append(report([seq], decode).outputs[0])
    broken = "\N{REPLACEMENT CHARACTER}"
    assert [replace(said, finish_reason="abort").text for said in outputs] == [
        *("Hello" + n * broken for n in range(4)),
        "Hello",
    ]
    assert [said.text for said in outputs] == ["Hello"] * 5


def test_reports_of_a_long_broken_text_cost_no_more_each():
    """Broken bytes without end are decoded once, when it is over, and not for every report."""
    decoded = []

    class Counting(Detokenizer):
        def stream(self, skip_special_tokens=True):
            stream = super().stream(skip_special_tokens)
            decode, stream.decode = stream.decode, lambda token_ids: decoded.append(len(token_ids)) or decode(token_ids)
            return stream

    decode, params = Counting(byte_fallback_tokenizer()), SamplingParams(stop="xx", max_tokens=200)
    seq = Sequence("x", [5], params, 201, frozenset(), stops=StopStrings(params, decode.stream))
    for _ in range(200):
        seq.append(decode.tokenizer.token_to_id("<0xF0>"))
        last = report([seq], decode).outputs[0]
    assert last.text == 200 * "\N{REPLACEMENT CHARACTER}"
    assert len(decoded) <= 2


def test_a_stop_string_without_a_tokenizer_is_refused():
    desk = FrontDesk(
        EngineConfig(max_model_len=32, num_blocks=4), Vocabulary(64, frozenset(), None, Detokenizer(None), None)
    )
    with pytest.raises(ValueError, match="stop needs a tokenizer"):
        desk.open([5], SamplingParams(stop="x"))
    assert not desk.live


def run(level, params, drafter=None, **fields):
    """All outputs of one request, step by step."""
    if level >= 5:
        fields["num_speculative_tokens"] = 3
    model = FakeModel(eos_token_ids=frozenset())
    engine = load(level).Engine(EngineConfig(block_size=4, num_blocks=24, max_model_len=32, **fields), model)
    if drafter:
        plain = answers_alone(model, [2, 3], params, 32)
        engine.drafter = DRAFTERS[drafter](engine, lambda seq: plain[seq.choice].token_ids)
    engine.add_request([2, 3], params, "x")
    outputs = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    return outputs


def speech(level=1, **fields):
    """What the fake model says, as letters."""
    params = SamplingParams(**{"temperature": 4.0, "seed": 3, "max_tokens": 24, "ignore_eos": True, **fields})
    return params, [said.text for said in run(level, params)[-1].outputs]


@given(st.text("ab", max_size=9), st.text("ab", min_size=1, max_size=5))
def test_what_begins_a_stop_string_is_its_longest_beginning_at_the_end(text, stop):
    beginnings = [n for n in range(1, len(stop)) if text.endswith(stop[:n])]
    assert count_begun(text, stop) == max(beginnings, default=0)


def test_a_stop_string_as_long_as_a_book_costs_no_more_than_the_text():
    book = "ab" * 4_000_000  # looked at from each of its beginnings, this would take hours
    assert watch(["ab" * 100, "b"], stop=book) == (["", "ab" * 100 + "b"], None)


@pytest.mark.parametrize("level", LEVELS)
def test_at_every_level_a_stop_string_ends_a_choice_and_only_that(level):
    params, texts = speech(n=3)
    stop = texts[0][7:10]
    *_, output = outputs = run(level, SamplingParams(**{**vars(params), "stop": stop}))
    for text, said in zip(texts, output.outputs, strict=True):
        begin = text.find(stop)
        if begin < 0:
            assert (said.text, said.finish_reason, said.stop_reason) == (text, "length", None)
        else:
            assert (said.text, said.finish_reason, said.stop_reason) == (text[:begin], "stop", stop)
            assert len(said.token_ids) == begin + 3, "all tokens up to the one that completed it"
    shown = [each.outputs[0].text for each in outputs]
    assert all(after.startswith(before) for before, after in pairwise(shown))
    assert output.outputs[0].stop_reason == stop, "or nothing was shown"


@pytest.mark.parametrize("drafter", sorted(DRAFTERS))
def test_every_token_of_an_accepted_run_is_looked_at(drafter):
    params, (text,) = speech(temperature=0)
    for begin in range(3, 9):
        for stop in (text[begin], text[begin : begin + 2]):
            asked = SamplingParams(**{**vars(params), "stop": stop, "min_tokens": 3})
            ends = [run(level, asked, guess)[-1].outputs[0] for level, guess in ((4, None), (5, drafter))]
            assert ends[0] == ends[1]
            assert ends[0].text == ends[1].text
            assert ends[0].stop_reason == stop


def test_giving_way_changes_no_text():
    params, texts = speech(n=3)
    asked = SamplingParams(**{**vars(params), "stop": texts[1][9:12]})
    tight = load(3).Engine(
        EngineConfig(block_size=2, num_blocks=13, max_model_len=26), FakeModel(eos_token_ids=frozenset())
    )
    tight.add_request([2, 3], asked)
    while tight.has_unfinished_requests():
        outputs = tight.step()
    assert outputs[0].num_preemptions > 0
    assert [said.text for said in outputs[0].outputs] == [said.text for said in run(3, asked)[-1].outputs]


def test_whoever_is_aborted_keeps_the_beginning_that_was_held_back():
    from minipaged.driver import Request, Run

    params, (text,) = speech()
    asked = SamplingParams(**{**vars(params), "stop": text[:24] + "never"})
    engine = load(3).Engine(EngineConfig(num_blocks=8, max_model_len=32), FakeModel(eos_token_ids=frozenset()))

    def on_step(run, outputs):
        assert outputs[0].outputs[0].text == ""
        if run.num_steps == 5:
            raise KeyboardInterrupt

    record = Run(engine, [Request([2, 3], asked)]).go(on_step).records[0]
    assert (record.output.outputs[0].finish_reason, record.output.outputs[0].text) == ("abort", text[:5])
