"""A language of few words, spelled out, beside the bits and walks that stand for it.

LANGUAGES            structured_outputs, and every text that they allow (or every one that is short enough)
may_follow           the tokens that may come after what was said: letters, and EOS where a text is complete
judge()              Grammar against may_follow along walks that turn back; engines that guess against one without"""

import re
from functools import cache
from itertools import product
from random import Random

from levels import load
from minipaged.config import EngineConfig
from minipaged.sampling_params import SamplingParams

from .drafters import DRAFTERS
from .fake_model import FakeModel, letter_grammars, spell

VOCAB_SIZE, EOS = 12, frozenset({0, 1})  # EOS is a and b: texts are made of c to l
LONGEST = 5
LANGUAGES = {
    "regex": {"regex": "(cd|de){1,2}(f|ccc)?"},
    "open": {"regex": "c[d-f]*"},
    "choice": {"choice": ["cc", "ccd", "dd", "eee"]},
    "grammar": {"grammar": 'root ::= "c" tail\ntail ::= "d" | "e" tail | "f" "f"'},
}
PATTERNS = {"regex": "(cd|de){1,2}(f|ccc)?", "open": "c[d-f]*", "choice": "cc|ccd|dd|eee", "grammar": "ce*(d|ff)"}


@cache
def texts(language: str) -> frozenset[str]:
    """All that it allows, up to so many letters that each of LONGEST may still be completed."""
    spelled = ("".join(word) for n in range(1, LONGEST + 3) for word in product("cdef", repeat=n))
    return frozenset(text for text in spelled if re.fullmatch(PATTERNS[language], text))


def may_follow(language: str, said: list[int]) -> set[int]:
    """For what is at most LONGEST letters long."""
    text = "".join(spell(said))
    longer = {each[len(text)] for each in texts(language) if each.startswith(text) and each != text}
    return {ord(letter) - ord("a") for letter in longer} | (set(EOS) if text in texts(language) else set())


def allowed(grammar, said):
    bits = grammar.permitted(said)
    assert bits is not None, "a text that has not ended never allows everything"
    return {i for i in range(VOCAB_SIZE) if bits[i // 8] >> i % 8 & 1}


def wander(language, rng):
    """Said grows, drafts come and go: whatever was looked at before, the bits are those of the place."""
    grammar = letter_grammars(VOCAB_SIZE, EOS).open(LANGUAGES[language]).anew()
    grammar.compiled.result()
    said = []
    while len(said) < LONGEST and (letters := sorted(may_follow(language, said) - EOS)):
        drafts = [rng.choice([rng.choice(letters), rng.randrange(2, 6)]) for _ in range(rng.randint(0, 3))]
        fitting = 0
        while fitting < len(drafts) and drafts[fitting] in may_follow(language, said + drafts[:fitting]):
            fitting += 1
            if len(said) + fitting > LONGEST:
                return
        assert grammar.count_allowed(said, drafts) == fitting, (language, said, drafts)
        for n in range(fitting + 1):
            if len(said) + n <= LONGEST:
                place = said + drafts[:n]
                assert allowed(grammar, place) == may_follow(language, place), (language, place)
        said = [*said, rng.choice(letters)]


def serve(level, visits, drafter=None, plain=None, **fields):
    """What everybody says, choice by choice; plain: the answers that a drafter may know."""
    config = EngineConfig(**{"block_size": 2, "num_blocks": 64, "max_model_len": 24, **fields})
    engine = load(level).Engine(config, FakeModel(vocab_size=VOCAB_SIZE, eos_token_ids=EOS))
    if drafter:
        known = {name: [token_ids for token_ids, *_ in said] for name, said in (plain or {}).items()}
        engine.drafter = DRAFTERS[drafter](engine, lambda seq: known[seq.request_id][seq.choice])
    for i, (prompt, params) in enumerate(visits):
        engine.add_request(prompt, params, str(i))
    last = {}
    while engine.has_unfinished_requests():
        last |= {output.request_id: output for output in engine.step()}
        engine.check_integrity()
    return {name: [(s.token_ids, s.text, s.finish_reason) for s in output.outputs] for name, output in last.items()}


def crowd(rng, temperature):
    """Two with grammars, and one without beside them."""
    visits = []
    for structure in [*rng.sample(sorted(LANGUAGES), 2), None]:
        params = SamplingParams(
            temperature=temperature,
            seed=rng.randrange(100),
            max_tokens=9,
            n=rng.choice([1, 2]),
            structured_outputs=LANGUAGES[structure] if structure else None,
        )
        visits.append((rng.choice([[2], [3, 4], [2, 3, 2]]), params))
    return visits


def check_valid(visits, said):
    for i, (_, params) in enumerate(visits):
        names = [name for name, structure in LANGUAGES.items() if structure == params.structured_outputs]
        for _, text, reason in said[str(i)] if names else []:
            assert reason in ("stop", "length"), (text, reason)
            assert reason == "length" or re.fullmatch(PATTERNS[names[0]], text), (names, text)


STUCK = ([2], SamplingParams(temperature=0, max_tokens=5, structured_outputs={"choice": ["ca"]}))  # a is EOS, no letter


def judge():
    assert serve(3, [STUCK])["0"] == [([2], "c", "error")], "what ends an answer is no text"
    rng = Random(0)
    for _ in range(60):
        for language in LANGUAGES:
            wander(language, rng)
    for drafter in sorted(DRAFTERS):
        temperature = 0 if drafter == "draft model" else 4.0  # drawn with a draft model, only the distribution is equal
        visits = crowd(rng, temperature)
        plain = serve(4, visits)
        check_valid(visits, plain)
        assert serve(5, visits, drafter, plain, num_speculative_tokens=3) == plain, (drafter, visits)
