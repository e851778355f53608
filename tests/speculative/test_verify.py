"""Whatever was guessed, and by whom: what is said is distributed as if nobody had guessed."""

from itertools import product

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from levels import load
from minipaged.batch import Chunk, Row, pack
from minipaged.config import EngineConfig
from minipaged.loading import load_model
from minipaged.sampling import distribution, sample
from minipaged.sampling_params import SamplingParams
from minipaged.sequence import Sequence
from minipaged.speculative.drafter import Guess
from minipaged.speculative.verify import choose, verify

from ..chances import NUM_DRAWS, Dice, check_frequencies, draws, p_value
from ..drafters import Scripted, drafting_with, noise, scripted
from ..tiny import tiny_model

words = st.integers(0, 2)
guessed = st.lists(
    st.tuples(st.lists(words, max_size=3), st.lists(words, min_size=4, max_size=4)), min_size=1, max_size=3
)
weights = st.lists(st.integers(0, 3), min_size=3, max_size=3).filter(any)


@given(guessed)
def test_what_agrees_stands(chunks):
    """Each chunk guessed some words and is told four; a last one is in the middle of its prompt."""
    seqs = [
        Sequence(str(i), [0], SamplingParams(temperature=0), max_len=99, block_table=[i]) for i in range(len(chunks))
    ]
    prompt = Sequence("prompt", [0, 1, 2], SamplingParams(temperature=0), max_len=99, block_table=[9])
    plan = [*(Chunk(seq, 1, tuple(guess)) for seq, (guess, _) in zip(seqs, chunks, strict=True)), Chunk(prompt, 2)]
    said = [word for guess, told in chunks for word in told[: len(guess) + 1]]
    logits = torch.nn.functional.one_hot(torch.tensor(said), 3).float()
    guesses = [*(Guess(tuple(guess)) for guess, _ in chunks), Guess()]
    *kept, nothing = verify(pack(plan, block_size=16), logits, guesses, sample)
    assert nothing == [], "a chunk in the middle of a prompt says nothing"
    for (guess, told), tokens in zip(chunks, kept, strict=True):
        num_right = next((i for i, word in enumerate(guess) if word != told[i]), len(guess))
        facts = {"guess": guess, "said": told[: len(guess) + 1], "kept": tokens}
        assert tokens == told[: num_right + 1], f"what agrees stands, then one word of the model's own: {facts}"


@given(p=weights, q=weights, x=words)
def test_what_stands_and_what_replaces_it(p, q, x):
    assume(q[x] > 0)
    facts = {"p": p, "q": q, "guess": x}
    p, q, rows = torch.tensor(p) / sum(p), torch.tensor(q) / sum(q), [Row(SamplingParams(), n, 5) for n in range(100)]
    said = choose(p.repeat(100, 1), q.repeat(100, 1), torch.full((100,), x), rows)
    is_kept, others = said == x, set(said[said != x].tolist())
    assert is_kept.all() or p[x] < q[x], f"a guess that the model likes at least as much is kept: {facts}"
    assert not is_kept.any() or p[x] > 0, f"what the model would never say is not kept: {facts}"
    assert all(p[word] > q[word] for word in others), (
        f"whatever replaces a guess has more chance with the model than with the guesser: {facts}"
    )


def test_a_wrong_law_has_a_small_p_value_and_the_right_one_has_not():
    assert p_value([5030, 2980, 1990], [0.5, 0.3, 0.2]) > 0.1
    assert p_value([5200, 2900, 1900], [0.5, 0.3, 0.2]) < 1e-3


def test_three_words_come_out_as_often_as_the_target_says():
    p, q = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.1, 0.6, 0.3])
    x = torch.multinomial(q, NUM_DRAWS, replacement=True, generator=torch.Generator().manual_seed(0))
    rows = [Row(SamplingParams(), seed, 5) for seed in range(NUM_DRAWS)]
    words = choose(p.repeat(NUM_DRAWS, 1), q.repeat(NUM_DRAWS, 1), x, rows)
    assert p_value(words.bincount(minlength=3).tolist(), p.tolist()) > 1e-3
    is_kept = words == x
    assert float(is_kept.double().mean()) == pytest.approx(0.6, abs=0.015)  # the overlap of p and q
    assert set(words[~is_kept].tolist()) == {0}, "only the first has more chance in p than in q"


def test_equal_distributions_keep_everything():
    p = torch.tensor([0.25, 0.75]).repeat(1000, 1)
    x = (torch.arange(1000) % 4 > 0).long()
    assert torch.equal(choose(p, p.clone(), x, [Row(SamplingParams(), seed, 1) for seed in range(1000)]), x)


PARAMS = {
    "as it is": SamplingParams(temperature=1.0, max_tokens=3, ignore_eos=True),
    "wished": SamplingParams(
        frequency_penalty=0.5,
        repetition_penalty=1.5,
        logit_bias={4: 1.0},
        min_tokens=2,
        max_tokens=3,
        stop_token_ids=[3],
        ignore_eos=True,
    ),
    "cut": SamplingParams(temperature=0.7, top_k=4, top_p=0.9, min_p=0.05, max_tokens=3, ignore_eos=True),
}
GUESSERS = {
    "nobody": None,
    "a draft model": drafting_with(lambda engine: Dice(salt=1)),
    "the model itself": drafting_with(lambda engine: engine.model),
    "a die": scripted(lambda answer_to, size: noise(size)),
}


CASES = [*(("as it is", guesser) for guesser in GUESSERS), *((params, "a draft model") for params in [*PARAMS][1:])]


@pytest.mark.parametrize(("params", "guesser"), CASES)
def test_the_first_three_words_have_exactly_the_model_s_distribution(params, guesser):
    check_frequencies(draws(PARAMS[params], GUESSERS[guesser], 6000), PARAMS[params])


def test_the_law_that_frequencies_are_held_against_adds_up():
    params, dice = PARAMS["cut"], Dice()
    rows = torch.tensor([dice.logits([2, 3, *said]) for n in range(3) for said in product(range(6), repeat=n)])
    weights = distribution(rows, [params] * len(rows))
    assert ((weights > 0).sum(-1) <= 4).all()
    assert weights.shape == (1 + 6 + 36, 6)


@pytest.mark.parametrize("prompt", [[3, 4, 5], list(range(2, 90))], ids=["short", "long"])
def test_a_wrong_guess_that_makes_nan_spoils_no_word_before_it(prompt, tmp_path):
    model = load_model(EngineConfig(model=str(tiny_model(tmp_path))))
    fields = {"num_blocks": 64, "block_size": 4, "max_model_len": 128, "num_speculative_tokens": 3}

    def say(guess):
        engine = load(5).Engine(EngineConfig(**fields), model)
        engine.drafter = Scripted(engine.drafter.length, guess)
        engine.add_request(prompt, SamplingParams(temperature=0, max_tokens=9, ignore_eos=True))
        while engine.has_unfinished_requests():
            (output,) = engine.step()
        return output.outputs[0].token_ids, engine.trace.steps[0].draft_tokens

    plain, _ = say(lambda seq, limit: [])
    spoilt = next(token for token in range(96) if token not in [*prompt, *plain])
    with torch.inference_mode():
        model.model.entrance.weight[spoilt] = torch.nan
    assert say(lambda seq, limit: [spoilt] * limit) == (plain, {"0": 3})


def test_with_itself_as_draft_model_random_drafts_are_all_accepted():
    engine = load(5).Engine(EngineConfig(num_blocks=64, max_model_len=64, num_speculative_tokens=3), Dice())
    engine.drafter = drafting_with(lambda engine: engine.model)(engine, None)
    engine.add_request([2, 3], SamplingParams(temperature=1.0, max_tokens=40, seed=1, ignore_eos=True))
    while engine.has_unfinished_requests():
        engine.step()
    assert len(engine.trace.steps) == 10
