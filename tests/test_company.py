"""Alone or in company, early or late, whoever leaves meanwhile: a request says the same, and reports the same of it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from levels import load
from minipaged.config import EngineConfig
from minipaged.sampling_params import SamplingParams

from .chances import VOCAB_SIZE, Dice

TOKENS = st.integers(0, VOCAB_SIZE - 1)
DRAWS = st.one_of(
    st.just({"temperature": 0}),
    st.fixed_dictionaries(
        {"temperature": st.sampled_from([0.8, 1.0, 2.0]), "seed": st.integers(-(2**63), 2**63 - 1)},
        optional={"top_k": st.integers(1, 9), "top_p": st.sampled_from([0.5, 0.9]), "min_p": st.sampled_from([0.2])},
    ),
)
WISHES = st.fixed_dictionaries(
    {"max_tokens": st.integers(3, 10), "ignore_eos": st.booleans(), "n": st.sampled_from([1, 1, 2])},
    optional={
        "presence_penalty": st.sampled_from([-1, 0.5, 2]),
        "frequency_penalty": st.sampled_from([-0.5, 1]),
        "repetition_penalty": st.sampled_from([0.7, 1.5]),
        "logit_bias": st.dictionaries(TOKENS, st.sampled_from([-100, -1, 2]), max_size=2),
        "allowed_token_ids": st.lists(TOKENS, min_size=4, max_size=6, unique=True),
        "min_tokens": st.integers(0, 3),
        "stop_token_ids": st.lists(TOKENS, max_size=1),
        "stop": st.lists(st.sampled_from(["c", "de", "ff", "cdc"]), min_size=1, max_size=2),
        "include_stop_str_in_output": st.booleans(),
        "structured_outputs": st.sampled_from(
            [{"regex": "[c-f]{2,8}"}, {"choice": ["cd", "cde", "effe"]}, {"grammar": 'root ::= ("c" | "d" root "e")+'}]
        ),
        "logprobs": st.integers(-1, 3),
        "prompt_logprobs": st.integers(-1, 3),
    },
)


def wish(draws, wishes):
    guided = {"ignore_eos": False} if "structured_outputs" in wishes else {}  # nothing may follow a grammar's end
    return SamplingParams(**draws, **(wishes | guided))


VISITS = st.tuples(
    st.lists(TOKENS, min_size=2, max_size=9),
    st.builds(wish, DRAWS, WISHES),
    st.integers(0, 5),  # the step before which it comes
    st.sampled_from([None, None, None, 2, 4]),  # the step before which it goes
)


def build(level):
    fields = {"num_blocks": 14, "block_size": 2, "max_model_len": 24, "max_num_batched_tokens": 7}
    guessing = {"num_speculative_tokens": 2} if level == 5 else {}
    return load(level).Engine(EngineConfig(**fields, **guessing), Dice())


def serve(level, visits):
    """The last output of everybody who stayed."""
    engine, last, step = build(level), {}, 0
    while step <= 6 or engine.has_unfinished_requests():
        for i, (prompt, params, comes, goes) in enumerate(visits):
            if comes == step:
                engine.add_request(prompt, params, str(i))
            if goes == step:
                engine.abort(str(i))
        last |= {output.request_id: output for output in engine.step()} if engine.has_unfinished_requests() else {}
        engine.check_integrity()
        step += 1
    return {name: output for name, output in last.items() if output.finished}


def flat(entries):
    """Entries as a list of (token id, logprob, rank), to compare with a tolerance; ties are in no order."""
    return [sorted((one.logprob, one.rank) for one in (entry or {}).values()) for entry in entries or []]


@pytest.mark.parametrize("level", [3, 4, 5])
@settings(max_examples=25)
@given(visits=st.lists(VISITS, min_size=2, max_size=5))
def test_a_request_says_the_same_alone_and_in_any_company(level, visits):
    for name, output in serve(level, visits).items():
        prompt, params, _, _ = visits[int(name)]
        alone = serve(level, [(prompt, params, 0, None)])["0"]
        assert output.outputs == alone.outputs
        assert [said.text for said in output.outputs] == [said.text for said in alone.outputs]
        for ours, theirs in [
            (output.prompt_logprobs, alone.prompt_logprobs),
            *zip([said.logprobs for said in output.outputs], [said.logprobs for said in alone.outputs], strict=True),
        ]:
            assert (ours is None) == (theirs is None)
            for entry, other in zip(flat(ours), flat(theirs), strict=True):
                assert [rank for _, rank in entry] == [rank for _, rank in other]
                assert [x for x, _ in entry] == pytest.approx([x for x, _ in other], abs=1e-5)


COMMON = {"max_tokens": 8, "seed": 5, "temperature": 2.0}
KINDS = {
    "greedy": {"temperature": 0, "max_tokens": 8},
    "structured": {**COMMON, "structured_outputs": {"regex": "[c-f]{2,8}"}},
    "stopped": {**COMMON, "stop": ["de", "f"], "ignore_eos": True},
    "penalised": {**COMMON, "frequency_penalty": 1.0, "repetition_penalty": 1.5, "ignore_eos": True},
    "structured and stopped": {**COMMON, "structured_outputs": {"regex": "(c|d|ef)*"}, "stop": ["dd"], "n": 2},
}


@pytest.mark.parametrize("level", [3, 4, 5])
def test_one_of_each_kind_in_one_batch_says_what_it_says_alone(level):
    visits = [([2 + i % 3, 3, 4], SamplingParams(**wishes), i, None) for i, wishes in enumerate(KINDS.values())]
    for order in (visits, visits[::-1]):
        said = serve(level, order)
        for i, (prompt, params, _, _) in enumerate(order):
            alone = serve(level, [(prompt, params, 0, None)])["0"]
            assert said[str(i)].outputs == alone.outputs
            assert [one.text for one in said[str(i)].outputs] == [one.text for one in alone.outputs]


@pytest.mark.parametrize("other", [{"seed": None}, {"seed": 7}, {"temperature": 0}, {"seed": 42}], ids=str)
@pytest.mark.parametrize("level", [3, 4, 5])
def test_a_seeded_request_is_the_same_beside_a_seeded_an_unseeded_and_a_greedy_one_in_any_place(level, other):
    ours = ([2, 3, 4], SamplingParams(seed=42, temperature=0.8, max_tokens=10, ignore_eos=True), 0, None)
    theirs = ([5, 2], SamplingParams(**{"temperature": 1.0, "max_tokens": 8, **other}), 0, None)
    (alone,) = serve(level, [ours]).values()
    for visits in ([ours, theirs], [theirs, ours], [theirs, theirs, ours]):
        assert serve(level, visits)[str(visits.index(ours))].outputs == alone.outputs
