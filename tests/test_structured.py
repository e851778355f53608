"""What an answer looks like is kept, token by token, however it came about; and nobody else notices."""

import json
import re
import threading
from concurrent.futures import Future
from functools import partial
from random import Random

import pytest
from tokenizers import decoders

from levels import NAMES, load
from minipaged.config import EngineConfig
from minipaged.desk import FrontDesk
from minipaged.detokenizer import Detokenizer
from minipaged.sampling_params import SamplingParams
from minipaged.structured import NUM_THREADS, Grammars, Order
from minipaged.vocabulary import Vocabulary

from .chances import PROMPT, Dice, draws, p_value
from .drafters import drafting_with
from .fake_model import FakeModel
from .grammars import EOS, LANGUAGES, STUCK, VOCAB_SIZE, check_valid, crowd, judge, serve
from .tiny_tokenizer import PIECES, byte_fallback_tokenizer

LEVELS = range(3, len(NAMES) + 1)
REGEX = {"regex": "(cd|de){1,2}(f|ccc)?"}


def test_bits_walks_and_guesses_are_those_of_the_language():
    judge()


@pytest.mark.parametrize("level", LEVELS)
def test_at_every_level_each_answer_is_valid_and_company_changes_nothing(level):
    rng = Random(level)
    for temperature in (0, 4.0, 1e6):
        visits = crowd(rng, temperature)
        together = serve(level, visits)
        check_valid(visits, together)
        alone = {str(i): serve(level, [visit])["0"] for i, visit in enumerate(visits)}
        assert together == alone == serve(3, visits)


def test_an_answer_is_the_same_after_giving_way():
    params = SamplingParams(temperature=4.0, seed=5, max_tokens=9, n=3, structured_outputs=LANGUAGES["open"])
    ample = serve(3, [([2, 3], params)])
    tight = load(3).Engine(
        EngineConfig(block_size=1, num_blocks=14, max_model_len=14), FakeModel(vocab_size=VOCAB_SIZE, eos_token_ids=EOS)
    )
    tight.add_request([2, 3], params, "0")
    while tight.has_unfinished_requests():
        outputs = tight.step()
    assert outputs[0].num_preemptions > 0
    assert [(s.token_ids, s.text, s.finish_reason) for s in outputs[0].outputs] == ample["0"]


def test_drawn_with_a_draft_model_answers_have_the_distribution_of_the_model_under_the_grammar():
    """Guesses are drawn under the same rows; cutting what was drawn without them would bend it."""
    structure = {"regex": "(c[de]|d[ce]f|[ef]e)[c-f]{1,3}"}
    params = SamplingParams(temperature=1.0, max_tokens=3, structured_outputs=structure)
    said = draws(params, drafting_with(lambda engine: Dice(salt=1)), 2000)
    words = sorted({*said, *WORDS})
    assert p_value([said[word] for word in words], [law(word) for word in words]) > 1e-3


WORDS = [
    tuple(ord(letter) - ord("a") for letter in text)
    for text in (a + b + c for a in "cdef" for b in "cdef" for c in "cdef")
    if re.fullmatch("c[de].|d[ce]f|[ef]e.", text)
]


def law(word):
    """The chance of three letters: at each, the model's own among those that lead on."""
    chance, dice = 1.0, Dice()
    for i, token in enumerate(word):
        weights = [2.718281828459045**x for x in dice.logits([*PROMPT, *word[:i]])]
        fitting = {each[i] for each in WORDS if each[:i] == word[:i]}
        chance *= weights[token] / sum(weights[each] for each in fitting) if word in WORDS else 0.0
    return chance


def test_logprobs_are_the_models_own_not_those_of_what_was_allowed():
    params = SamplingParams(temperature=0, max_tokens=1, logprobs=1, structured_outputs={"choice": ["ee"]})
    model = FakeModel(vocab_size=VOCAB_SIZE, eos_token_ids=EOS)
    engine = load(3).Engine(EngineConfig(num_blocks=8, max_model_len=32), model)
    engine.add_request([2, 3], params)
    while engine.has_unfinished_requests():
        (output,) = engine.step()
    row = model.logits([2, 3])
    (entry,) = output.outputs[0].logprobs
    assert row.index(max(row)) != 4
    assert entry[4].rank > 1
    assert entry[row.index(max(row))].rank == 1


def test_where_nothing_is_left_to_say_the_request_fails_alone():
    said = serve(3, [STUCK, ([3], SamplingParams(temperature=0, max_tokens=3))])
    assert said["0"] == [([2], "c", "error")]
    assert said["1"] == serve(3, [([3], SamplingParams(temperature=0, max_tokens=3))])["0"]


class Slow(Grammars):
    """Compiles when the test says so."""

    def open(self, structure):
        grammar = super().open(structure)
        self.real, self.late = grammar.order, getattr(self, "late", Future())
        self.real.compiled.result()
        grammar.order = Order(self.late)
        return grammar

    def finish(self):
        self.late.set_result(self.real.compiled.result())


def waiting_room(level=3, **fields):
    """An engine, and the grammar that its first request waits for."""
    model = FakeModel(vocab_size=VOCAB_SIZE, eos_token_ids=EOS)
    engine = load(level).Engine(EngineConfig(num_blocks=32, block_size=2, max_model_len=16, **fields), model)
    slow = engine.desk.grammars = Slow(model.vocabulary.grammars.tokenizer, VOCAB_SIZE, EOS)
    engine.add_request([2], SamplingParams(max_tokens=4, temperature=0, structured_outputs=REGEX, n=2), "slow")
    return engine, slow


PLAIN = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)


def step(engine):
    outputs = engine.step()
    engine.check_integrity()
    return {output.request_id: output for output in outputs}


def test_others_run_while_a_grammar_is_compiled_and_then_it_takes_its_own_place():
    engine, slow = waiting_room(max_num_seqs=1)
    for name in ("a", "b"):
        engine.add_request([3], PLAIN, name)
    assert [set(step(engine)) for _ in range(2)] == [{"a"}] * 2
    assert engine.trace.steps[-1].num_waiting == 3, "both choices, and b"
    slow.finish()
    while engine.has_unfinished_requests():
        step(engine)
    admitted = [name for record in engine.trace.steps for name in record.admitted]
    assert admitted == ["a", "slow", "slow", "b"], "before b, which came later"


def test_with_nobody_else_a_step_waits_a_moment_and_says_nothing():
    engine, slow = waiting_room()
    assert step(engine) == {}
    assert engine.has_unfinished_requests()
    assert engine.trace.steps == []
    slow.finish()
    assert set(step(engine)) == {"slow"}


def test_whoever_leaves_while_it_is_compiled_is_gone():
    engine, slow = waiting_room()
    engine.abort("slow")
    engine.check_integrity()
    assert not engine.has_unfinished_requests()
    assert slow.late.cancelled(), "nobody else waits for it"
    assert step(engine) == {}


def test_what_nobody_waits_for_any_more_is_not_compiled():
    """All threads are busy with others' grammars; who leaves the queue takes the work along, unless it is shared."""
    grammars, go_on, compiled = waiting_room()[1], threading.Event(), []

    def compile(structure):
        compiled.append(structure["regex"])
        go_on.wait()

    grammars.compile = compile
    busy = [Grammars.open(grammars, {"regex": str(i)}) for i in range(NUM_THREADS)]
    gone, shared = Grammars.open(grammars, {"regex": "gone"}), Grammars.open(grammars, {"regex": "shared"})
    also = Grammars.open(grammars, {"regex": "shared"}).anew()
    del gone, shared
    again = Grammars.open(grammars, {"regex": "gone"})
    del again
    go_on.set()
    for grammar in (*busy, also):
        grammar.compiled.result(10)
    grammars.pool.shutdown()
    assert sorted(compiled) == [*map(str, range(NUM_THREADS)), "shared"]


def test_a_grammar_that_cannot_be_compiled_ends_the_request_with_the_reason():
    engine, slow = waiting_room()
    engine.add_request([3], PLAIN, "a")
    slow.late.set_exception(RuntimeError("too large"))
    outputs = step(engine)
    assert set(outputs) == {"a", "slow"}
    assert [said.finish_reason for said in outputs["slow"].outputs] == ["error", "error"]
    assert "cannot be compiled: too large" in outputs["slow"].error
    assert engine.trace.steps[-1].finished == ["slow", "slow"]
    while engine.has_unfinished_requests():
        outputs = step(engine)
    assert outputs["a"].outputs[0].finish_reason == "length"


@pytest.mark.parametrize(
    ("structure", "error", "complaint"),
    [
        ({"json": {"properties": {"foo": "bar"}}}, ValueError, "this json is not understood: #/properties/foo must be"),
        ({"json": "{"}, ValueError, "this json is not understood"),
        ({"json": {"type": {1}}}, ValueError, "this json is not understood"),
        ({"regex": "("}, ValueError, "this regex is not understood: .*unterminated subpattern"),
        ({"grammar": "x ::= y"}, ValueError, "this grammar is not understood: .*root"),
    ],
)
def test_what_is_no_grammar_is_refused_with_the_reason_before_anything_runs(structure, error, complaint):
    engine = load(3).Engine(EngineConfig(num_blocks=8, max_model_len=16), FakeModel())
    with pytest.raises(error, match=complaint):
        engine.add_request([2], SamplingParams(max_tokens=4, structured_outputs=structure))
    assert not engine.has_unfinished_requests()


@pytest.mark.parametrize(
    ("structure", "error"),
    [
        ("json", TypeError),
        ({}, ValueError),
        ({"regex": "a", "choice": ["a"]}, ValueError),
        ({"yaml": "a"}, ValueError),
        ({"regex": 3}, TypeError),
        ({"json": ["a"]}, TypeError),
        ({"choice": "a"}, TypeError),
        ({"choice": [1]}, TypeError),
        ({"choice": []}, ValueError),
        ({"choice": ["a", ""]}, ValueError),
    ],
)
def test_what_names_no_structure_is_refused_by_name(structure, error):
    with pytest.raises(error, match="structured_outputs"):
        SamplingParams(structured_outputs=structure)


def test_nothing_may_follow_the_end_of_a_grammar():
    with pytest.raises(ValueError, match="ignore_eos"):
        SamplingParams(structured_outputs=REGEX, ignore_eos=True)


@pytest.mark.parametrize("level", [1, 2])
def test_before_level_03_it_is_refused_by_that_number(level):
    engine = load(level).Engine(EngineConfig(num_blocks=8, max_model_len=16), FakeModel())
    with pytest.raises(ValueError, match="structured_outputs comes with level 03"):
        engine.add_request([2], SamplingParams(max_tokens=4, structured_outputs=REGEX))


def test_a_model_needs_a_tokenizer_and_an_end_for_it():
    config = EngineConfig(max_model_len=32, num_blocks=4)
    for tokenizer, eos, lack in ((None, EOS, "a tokenizer"), (byte_fallback_tokenizer(), frozenset(), "an end-of-seq")):
        desk = FrontDesk(config, Vocabulary(64, eos, None, Detokenizer(tokenizer), Grammars(tokenizer, 64, eos)))
        with pytest.raises(ValueError, match=f"structured_outputs needs {lack}"):
            desk.open([5], SamplingParams(structured_outputs=REGEX))


def test_a_character_may_come_in_bytes_and_specials_are_no_text():
    tokenizer = byte_fallback_tokenizer()
    grammar = Grammars(tokenizer, len(PIECES), frozenset({2})).open({"regex": "(🔥|叫|<s>)+"})
    grammar.compiled.result()
    said = [PIECES.index("▁")]  # the first blank of a text is dropped
    for byte in "🔥".encode():
        piece = PIECES.index(f"<0x{byte:02X}>")
        assert piece in tokens_of(grammar, said)
        said.append(piece)
    assert {PIECES.index("叫"), 2} <= tokens_of(grammar, said)
    assert PIECES.index("<s>") not in tokens_of(grammar, said)


def tokens_of(grammar, said):
    bits = grammar.permitted(said)
    return {i for i in range(len(PIECES)) if bits[i // 8] >> i % 8 & 1}


def test_choices_may_hold_any_character():
    odd = ['a "quoted" one', "back\\slash", "two\nlines", "tab\t", "東京", "🔥"]
    grammars = Grammars(byte_fallback_tokenizer(), len(PIECES), frozenset({2}))
    for text in odd:
        grammar = grammars.open({"choice": odd})
        grammar.compiled.result()
        said = [PIECES.index(f"<0x{byte:02X}>") for byte in f" {text}".encode()]
        assert grammar.count_allowed([], said) == len(said)
        assert tokens_of(grammar, said) == {2}


@pytest.mark.parametrize("choices", [[" Hello", "  x"], ["Hello", "x"], ["  Hello er"], [" "]], ids=str)
def test_a_decoder_that_drops_the_first_blank_drops_one_that_is_not_part_of_the_answer(choices):
    tokenizer, rng = byte_fallback_tokenizer(), Random(0)
    grammar = Grammars(tokenizer, len(PIECES), frozenset({2})).open({"choice": choices})
    grammar.compiled.result()
    for _ in range(20):
        said = []
        while (allowed := tokens_of(grammar, said)) != {2}:
            said.append(rng.choice(sorted(allowed - {2})))
        assert tokenizer.decode(said) in choices


def test_one_that_drops_all_of_them_is_refused():
    tokenizer = byte_fallback_tokenizer()
    tokenizer.decoder = decoders.Metaspace()
    with pytest.raises(ValueError, match="Metaspace drops blanks"):
        Grammars(tokenizer, len(PIECES), frozenset({2})).check(REGEX)


def test_the_same_grammar_is_compiled_once_while_somebody_uses_it():
    grammars = Grammars(byte_fallback_tokenizer(), len(PIECES), frozenset({2}))
    first, second = grammars.open({"regex": "é+"}), grammars.open({"regex": "é+"})
    assert first.compiled is second.compiled
    assert grammars.open({"regex": "é"}).compiled is not first.compiled


def test_params_with_a_grammar_are_values():
    first, second = (SamplingParams(structured_outputs={"json": {"type": "object"}}) for _ in range(2))
    assert len({first, second}) == 1


SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
}
NUMBER, CITIES = "[0-9]{3}-[a-z]{2,4}", ["Paris", "Rome, Italy", "東京 🔥"]


@pytest.mark.default_model
def test_the_default_model_says_only_what_is_valid_and_others_do_not_notice():
    from minipaged import LLM
    from minipaged.loading import load_model

    model = load_model(EngineConfig())  # once for both
    for level, options in ((3, {}), (5, {"num_speculative_tokens": 3})):
        build = partial(load(level).Engine, model=model)
        check_the_default_model(LLM("smollm2-135m", engine=build, max_model_len=96, num_blocks=256, **options))


def check_the_default_model(llm):
    kinds = [{"json": SCHEMA}, {"regex": NUMBER}, {"choice": CITIES}]
    asked = [SamplingParams(seed=s, max_tokens=48, structured_outputs=kind) for kind in kinds for s in (0, 1)]
    free = [SamplingParams(temperature=0, max_tokens=8), SamplingParams(seed=3, max_tokens=8)]
    outputs = llm.generate(["Here is one:"] * (len(asked) + len(free)), [*asked, *free])
    texts = [output.outputs[0].text for output in outputs]
    for text in texts[:2]:
        person = json.loads(text)
        assert (list(person), len(person["name"]) <= 8, 0 <= person["age"] <= 99) == (["name", "age"], True, True)
    assert all(re.fullmatch(NUMBER, text) for text in texts[2:4])
    assert set(texts[4:6]) <= set(CITIES)
    alone = llm.generate(["Here is one:"] * len(free), free)
    assert [output.outputs[0].token_ids for output in alone] == [o.outputs[0].token_ids for o in outputs[len(asked) :]]
