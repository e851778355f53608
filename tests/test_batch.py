"""A plan gives away one budget; a packed batch is flat, owes nobody anything, and has a row where a token is due."""

import pytest

from minipaged.batch import NO_TOKEN, Chunk, Plan, advance, pack, unpack
from minipaged.sampling_params import SamplingParams
from minipaged.sequence import Score, Sequence


def sequence(num_tokens, num_computed=0, table=(), max_len=99):
    tokens = list(range(10, 10 + num_tokens))
    seq = Sequence("0", tokens, SamplingParams(temperature=0), max_len, frozenset({0}), seed=5)
    seq.num_computed_tokens, seq.block_table = num_computed, list(table)
    return seq


@pytest.mark.parametrize(
    ("pending", "budget", "longest", "share"), [(9, 100, 100, 9), (9, 4, 100, 4), (9, 100, 3, 3), (9, 0, 3, 0)]
)
def test_a_share_is_what_is_pending_cut_by_the_budget_and_the_longest_chunk(pending, budget, longest, share):
    assert Plan(budget, longest).share(sequence(pending)) == share


def test_the_budget_is_one_for_all_and_a_share_of_nothing_is_no_chunk():
    plan = Plan(budget=10)
    seqs = [sequence(n) for n in (4, 9, 2)]
    for seq in seqs:
        plan.add(seq)
    assert plan.chunks == [Chunk(seqs[0], 4), Chunk(seqs[1], 6)]
    assert (plan.budget, plan.is_open) == (0, False)


def test_a_plan_is_closed_once_somebody_found_no_room():
    assert Plan().is_open
    assert Plan(budget=1).is_open
    assert not Plan(crowded=True).is_open


def test_chunks_are_packed_flat_and_only_those_that_reach_their_end_have_a_row():
    chunks = [
        Chunk(sequence(5, num_computed=2, table=[7, 3]), 2),  # a chunk from within a prompt
        Chunk(sequence(5, num_computed=4, table=[1, 6]), 1),  # one token
        Chunk(sequence(3, num_computed=0, table=[2]), 3),  # a whole prompt
    ]
    batch = pack(chunks, block_size=3)
    assert batch.token_ids == [12, 13, 14, 10, 11, 12]
    assert batch.positions == [2, 3, 4, 0, 1, 2]
    assert batch.slot_mapping == [7 * 3 + 2, 3 * 3 + 0, 6 * 3 + 1, 6, 7, 8]
    assert batch.query_start_loc == [0, 2, 3, 6]
    assert batch.seq_lens == [4, 5, 3]
    assert batch.block_tables == [[7, 3], [1, 6], [2]]
    assert batch.logits_indices == [2, 5]
    assert batch.row_start_loc == [0, 0, 1, 2]
    assert [(row.seed, row.position) for row in batch.rows] == [(5, 5), (5, 3)]


def test_a_batch_is_a_copy():
    seq = sequence(2, table=[4])
    batch = pack([Chunk(seq, 2)], block_size=2)
    seq.tokens.append(1)
    seq.block_table.append(5)
    assert (batch.token_ids, batch.block_tables) == ([10, 11], [[4]])


def test_an_empty_batch_has_no_tokens_and_no_rows():
    batch = pack([], block_size=2)
    assert (batch.token_ids, batch.query_start_loc, batch.rows) == ([], [0], [])
    assert unpack(batch, []) == []


def test_tokens_go_back_to_the_chunks_that_had_a_row():
    chunks = [
        Chunk(sequence(5, table=[0, 1]), 2),
        Chunk(sequence(2, table=[2]), 2),
        Chunk(sequence(3, table=[3, 4]), 3),
    ]
    tokens = unpack(pack(chunks, block_size=3), [71, 72])
    assert tokens == [[], [71], [72]]
    advance(chunks, tokens)
    assert [chunk.seq.num_computed_tokens for chunk in chunks] == [2, 2, 3]
    assert [chunk.seq.tokens[-1] for chunk in chunks] == [14, 71, 72]


def test_no_token_ends_a_request_with_the_position_that_failed():
    seq = sequence(3)
    advance([Chunk(seq, 3)], [[NO_TOKEN]])
    assert (seq.finish_reason, seq.error) == ("error", "the model's logits are NaN at position 2")
    assert seq.tokens == [10, 11, 12]


def test_what_comes_after_the_end_is_not_appended():
    seq = sequence(3)
    advance([Chunk(seq, 3)], [[7, 0, 8]])  # 0 is EOS
    assert seq.tokens[3:] == [7, 0]


def test_a_prompt_that_is_computed_again_is_scored_from_where_it_was_left():
    seq = Sequence("", [5, 6, 7, 8, 9, 4], SamplingParams(prompt_logprobs=0), max_len=99)
    seq.block_table = [0]
    seq.prompt_scores += [{6: Score(-1.0, 1)}, {7: Score(-1.0, 1)}]  # then it gave way
    batch = pack([Chunk(seq, 5)], 8)
    assert [known.token_id for known in batch.known] == [8, 9, 4]
    assert batch.logits_indices == [2, 3, 4]
