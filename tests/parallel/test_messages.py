"""What is decoded is what was encoded: batches with all kinds of rows, guesses bit for bit, scores."""

from random import Random

import msgspec
import pytest
import torch

from minipaged.batch import Batch, Known, Measured, Row
from minipaged.parallel.messages import (
    ENCODER,
    ORDERS,
    REPLIES,
    WRITTEN,
    Answer,
    Remembered,
    Run,
    Stop,
    bare,
    full,
    unfold,
    write_params,
)
from minipaged.sampling_params import SamplingParams
from minipaged.sequence import Score
from minipaged.speculative.drafter import Guess

from ..worlds import random_visit

CPU = torch.device("cpu")


def random_row(rng):
    words = tuple(rng.randrange(96) for _ in range(rng.randint(0, 5)))
    held_back, permitted = frozenset(words[:2]), rng.choice([None, bytes([rng.randrange(256)] * 12)])
    params, seed = random_visit(rng).params, rng.getrandbits(63)
    return Row(params, seed, rng.randint(1, 99), words, words[1:], held_back, permitted)


def random_batch(rng):
    numbers = [rng.randrange(1000) for _ in range(6)]
    rows = [random_row(rng) for _ in range(rng.randint(1, 4))]
    known = [Known(0, 7, -1)] * rng.randint(0, 2)
    return Batch(numbers, numbers[::-1], [-1, 5], [0, 6], [9], [numbers, []], [5], [0, len(rows)], rows, known)


def random_guess(rng):
    token_ids = tuple(rng.randrange(96) for _ in range(rng.randint(0, 3)))
    probs = torch.rand(len(token_ids), 96, generator=torch.Generator().manual_seed(rng.getrandbits(31)))
    return Guess(token_ids, rng.choice([None, probs]) if token_ids else None)


def travel(order):
    return ORDERS.decode(ENCODER.encode(order))


@pytest.mark.parametrize("seed", range(40))
def test_a_batch_arrives_as_it_was_sent(seed):
    rng = Random(seed)
    batch, guesses = random_batch(rng), [random_guess(rng) for _ in range(3)]
    arrived, guessed = unfold(travel(full(batch, guesses)), CPU)
    for row, there in zip(batch.rows, arrived.rows, strict=True):
        assert there == row._replace(params=there.params)
        for name in ("temperature", "top_p", "top_k", "min_p", "logit_bias", "allowed_token_ids", "logprobs", "seed"):
            assert getattr(there.params, name) == getattr(row.params, name)
        assert (there.params.stop, there.params.structured_outputs) == ((), None), "no business of a rank"
    assert arrived._replace(rows=[]) == batch._replace(rows=[])
    assert [guess.token_ids for guess in guessed] == [guess.token_ids for guess in guesses]
    for guess, there in zip(guesses, guessed, strict=True):
        assert (guess.probs is None) == (there.probs is None)
        assert guess.probs is None or torch.equal(guess.probs, there.probs)


def test_no_number_of_a_request_is_too_large_to_travel():
    huge = SamplingParams(max_tokens=None, min_tokens=10**30, top_k=10**30, num_speculative_tokens=10**30)
    batch = Batch.empty()._replace(rows=[Row(huge, 5, 1)])
    [row] = unfold(travel(full(batch, [])), CPU)[0].rows
    assert (row.params.top_k, row.params.cuts, row.seed) == (2**63 - 1, True, 5)


def test_whoever_does_not_answer_is_told_of_no_wishes():
    batch = random_batch(Random(3))
    arrived = travel(bare(batch))
    assert arrived == Run(batch._replace(rows=[], known=[]))
    assert arrived.batch.logits_indices == batch.logits_indices


def test_scores_arrive_whatever_they_are():
    scores = {7: Score(-float("inf"), 96), 3: Score(-0.1, 1)}
    arrived = REPLIES.decode(ENCODER.encode(Answer([[7], []], [Measured([scores], [scores]), Measured()], 1.5)))
    assert (arrived.tokens, arrived.forward_s) == ([[7], []], 1.5)
    assert [list(each.gained) for each in arrived.measured] == [[scores], []]
    assert [list(each.prompt) for each in arrived.measured] == [[scores], []]
    assert isinstance(arrived.measured[0].gained[0][7], Score)


def test_params_are_checked_where_they_arrive():
    run = full(random_batch(Random(1)), [])
    run.rows = [msgspec.structs.replace(run.rows[0], params=ENCODER.encode({"temperature": -1.0}))]
    with pytest.raises(msgspec.ValidationError, match="temperature"):
        unfold(travel(run), CPU)


@pytest.mark.parametrize("data", [b"", b"\x80", ENCODER.encode(Stop()), ENCODER.encode({"type": "Answer"})])
def test_what_is_no_reply_is_refused(data):
    with pytest.raises(msgspec.DecodeError):
        REPLIES.decode(data)


def test_params_are_remembered_while_somebody_asks_by_them_and_not_for_all_who_ever_did():
    """A bias may be of all words: a server would be full after a few thousand such requests."""
    before = len(WRITTEN)
    params = SamplingParams(logit_bias={i: float(i % 7) for i in range(1000)})
    data = write_params(params)
    assert write_params(params) is data
    del params
    assert len(WRITTEN) == before
    remembered = Remembered(3 * len(data))
    first = remembered.read(data)
    assert remembered.read(data) is first
    for seed in range(20):
        remembered.read(write_params(SamplingParams(seed=seed, logit_bias={i: float(i % 7) for i in range(1000)})))
    assert len(remembered.params) <= 3
    assert remembered.read(data) is not first
    assert Remembered(1).read(data) == first, "one that is larger than all the room is read all the same"
