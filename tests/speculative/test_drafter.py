"""Guesses live on leftovers: of the budget, of the pool, of what a request may still become."""

import pytest

from levels import load
from minipaged.batch import Chunk, Plan
from minipaged.blocks import BlockManager
from minipaged.config import EngineConfig
from minipaged.sampling_params import SamplingParams
from minipaged.sequence import Sequence
from minipaged.speculative import speculate
from minipaged.speculative.drafter import Drafter
from minipaged.speculative.length import DraftLength

from ..drafters import Scripted, drafting_with
from ..fake_model import FakeModel

SIZE = 4


def sevens(seq, limit):
    return (7,) * limit


def running(blocks, num_tokens=5, max_len=99, wish=None):
    seq = Sequence("", [5] * num_tokens, SamplingParams(num_speculative_tokens=wish), max_len=max_len)
    assert blocks.reserve(seq, num_tokens)
    return seq


def drafted(k=3, num_blocks=9, num_tokens=5, budget=99, guess=sevens, **options):
    """How many drafts one sequence gets that runs all it has pending, and how many blocks are left."""
    blocks = BlockManager(num_blocks, SIZE)
    seq = running(blocks, num_tokens, **options)
    plan = Plan(budget=budget, chunks=[Chunk(seq, num_tokens)])
    speculate(plan, Scripted(DraftLength(k), guess), blocks)
    return len(plan.chunks[0].drafts), budget - plan.budget, blocks.num_free_blocks


def test_as_many_as_allowed_where_there_is_room():
    assert drafted() == (3, 3, 7)
    assert drafted(k=4) == (4, 4, 6)  # the ninth token needs a third block


def test_cut_to_the_budget():
    assert drafted(budget=2) == (2, 2, 7)
    assert drafted(budget=0) == (0, 0, 7)


def test_cut_to_the_pool_and_nobody_gives_way():
    assert drafted(k=6, num_blocks=2) == (3, 3, 0)
    assert drafted(k=6, num_blocks=2, num_tokens=8) == (0, 0, 0)


@pytest.mark.parametrize(("max_len", "expected"), [(6, 0), (7, 1), (9, 3)])
def test_cut_to_what_the_answer_may_become(max_len, expected):
    assert drafted(max_len=max_len)[0] == expected  # one token is the model's own


def test_a_request_may_want_fewer_or_none():
    assert (drafted(wish=1)[0], drafted(wish=0)[0]) == (1, 0)


def test_a_drafter_with_nothing_to_say_costs_nothing():
    assert drafted(guess=lambda seq, limit: ()) == (0, 0, 7)


def test_what_one_does_not_need_is_left_to_the_next():
    blocks = BlockManager(9, SIZE)
    plan = Plan(budget=4, chunks=[Chunk(running(blocks), 5), Chunk(running(blocks), 3), Chunk(running(blocks), 5)])
    said = {id(plan.chunks[0].seq): 1}
    drafter = Scripted(DraftLength(3), lambda seq, limit: (7,) * min(limit, said.get(id(seq), 9)))
    guesses = speculate(plan, drafter, blocks)
    assert [len(chunk.drafts) for chunk in plan.chunks] == [1, 0, 3], "the second does not reach its end"
    assert [guess.token_ids for guess in guesses] == [chunk.drafts for chunk in plan.chunks]
    assert plan.budget == 0


def test_a_threshold_counts_drafts_too():
    blocks = BlockManager(9, SIZE)
    plan = Plan(budget=99, max_chunk_len=6, chunks=[Chunk(running(blocks), 5)])
    speculate(plan, Scripted(DraftLength(3), sevens), blocks)
    assert plan.chunks[0].drafts == (7,)


def test_the_null_drafter_says_nothing():
    blocks = BlockManager(9, SIZE)
    plan = Plan(chunks=[Chunk(running(blocks), 5)])
    assert [guess.token_ids for guess in speculate(plan, Drafter(DraftLength(3)), blocks)] == [()]


def exactly(num_tokens, **options):
    return SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True, **options)


def engine(k=3, **fields):
    fields = {"num_blocks": 64, "block_size": SIZE, "max_model_len": 64, "num_speculative_tokens": k, **fields}
    return load(5).Engine(EngineConfig(**fields), FakeModel())


def finish(engine):
    last = {}
    while engine.has_unfinished_requests():
        last.update({output.request_id: output.outputs[0] for output in engine.step()})
        engine.check_integrity()
    return last


def test_with_itself_as_draft_model_everything_is_accepted_in_every_step():
    sure = engine()
    sure.drafter = drafting_with(lambda engine: engine.model)(sure, None)
    sure.add_request([2, 3, 4], exactly(48), "a")
    answer = finish(sure)["a"]
    steps = sure.trace.steps
    assert all(step.accepted_tokens == step.draft_tokens for step in steps)
    assert len(answer.token_ids) / len(steps) == 4.0


def test_who_speculates_and_who_does_not_share_a_batch():
    mixed, plain = (
        engine(prompt_lookup_min=1),
        load(4).Engine(EngineConfig(num_blocks=64, max_model_len=64), FakeModel()),
    )
    for name, wish in [("a", None), ("b", 0), ("c", 1)]:
        mixed.add_request([2, 3, 4, 2, 3], exactly(20, num_speculative_tokens=wish), name)
        plain.add_request([2, 3, 4, 2, 3], exactly(20), name)
    assert {k: a.token_ids for k, a in finish(mixed).items()} == {k: a.token_ids for k, a in finish(plain).items()}
    drafted = [step.draft_tokens for step in mixed.trace.steps]
    assert not any("b" in tokens for tokens in drafted)
    assert max(tokens.get("a", 0) for tokens in drafted) == 3
    assert max(tokens.get("c", 0) for tokens in drafted) == 1
    assert any(len(step.num_scheduled_tokens) == 3 and step.draft_tokens for step in mixed.trace.steps)


def test_a_prompt_too_short_for_any_match_is_decoded_plainly():
    short = engine(prompt_lookup_min=2)
    short.add_request([5], exactly(3), "a")
    short.add_request([2, 3, 4, 2, 3], exactly(3), "b")
    assert {name: len(answer.token_ids) for name, answer in finish(short).items()} == {"a": 3, "b": 3}
    assert list(short.trace.steps[0].draft_tokens) == ["b"]


@pytest.mark.parametrize("how", ["eos", "stop token", "length"])
def test_an_end_inside_a_run_that_was_all_right_ends_there(how):
    plain = load(4).Engine(EngineConfig(num_blocks=64, max_model_len=64), FakeModel())
    plain.add_request([2, 3, 4], exactly(9), "a")
    said = finish(plain)["a"].token_ids
    third = next(i for i, token in enumerate(said) if i >= 2 and token not in said[:i])
    fields = {"eos": {}, "stop token": {"stop_token_ids": (said[third],)}, "length": {}}[how]
    params = SamplingParams(
        temperature=0, max_tokens=third + 1 if how == "length" else 30, ignore_eos=how != "eos", **fields
    )
    model = FakeModel(eos_token_ids=frozenset({said[third]}))
    sure = load(5).Engine(EngineConfig(num_blocks=64, max_model_len=64, num_speculative_tokens=8), model)
    sure.drafter = drafting_with(lambda engine: engine.model)(sure, None)
    sure.add_request([2, 3, 4], params, "a")
    answer = finish(sure)["a"]
    assert answer.token_ids == said[: third + 1]
    assert answer.finish_reason == ("length" if how == "length" else "stop")
    assert answer.stop_reason == (said[third] if how == "stop token" else None)


def test_what_a_step_got_right_and_ended_with_is_published():
    sure = engine(k=8, block_size=4)
    sure.drafter = drafting_with(lambda engine: engine.model)(sure, None)
    sure.add_request([2, 3, 4], exactly(8), "a")
    answer = finish(sure)["a"]
    assert len(sure.trace.steps) == 1
    sure.add_request([2, 3, 4, *answer.token_ids[:-1], 9], exactly(1), "b")
    sure.step()
    assert sure.trace.steps[-1].cached_tokens == {"b": 8}
