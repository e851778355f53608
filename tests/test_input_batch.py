"""The tensors say what the lists said."""

from itertools import accumulate

import torch
from hypothesis import given
from hypothesis import strategies as st

from minipaged.batch import Batch
from minipaged.input_batch import to_device

CPU = torch.device("cpu")


def test_lists_become_tensors_and_only_block_tables_are_padded():
    batch = Batch([5, 6, 7], [0, 1, 9], [8, 9, 1], [0, 2, 3], [2, 10], [[2], [4, 0, 3]], [1, 2], [0, 1, 2], [], [])
    inputs = to_device(batch, CPU)
    assert inputs.token_ids.tolist() == [5, 6, 7]
    assert inputs.positions.tolist() == [0, 1, 9]
    assert inputs.slot_mapping.tolist() == [8, 9, 1]
    assert inputs.query_start_loc.tolist() == [0, 2, 3]
    assert inputs.seq_lens.tolist() == [2, 10]
    assert inputs.block_tables.tolist() == [[2, 0, 0], [4, 0, 3]]
    assert inputs.logits_indices.tolist() == [1, 2]
    assert (inputs.max_query_len, inputs.max_seq_len) == (2, 10)


def test_an_empty_batch_becomes_empty_tensors():
    inputs = to_device(Batch.empty(), CPU)
    assert inputs.token_ids.shape == inputs.seq_lens.shape == (0,)
    assert (inputs.max_query_len, inputs.max_seq_len) == (0, 0)


@given(
    lens=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 40)), max_size=7),
    num_rows=st.integers(0, 9),
)
def test_every_tensor_says_what_its_list_said_and_begins_where_kernels_like_it(lens, num_rows):
    """lens: new tokens and blocks of each sequence."""
    T = sum(n for n, _ in lens)
    tables = [[100 * s + i for i in range(n)] for s, (_, n) in enumerate(lens)]
    starts = [0, *accumulate(n for n, _ in lens)]
    tokens, lengths = list(range(T)), [n for n, _ in lens]
    slots = [2**40 + t for t in tokens]
    batch = Batch(tokens, [t + 5 for t in tokens], slots, starts, lengths, tables, [0] * num_rows, [], [], [])
    inputs = to_device(batch, CPU)
    for name in ("token_ids", "positions", "slot_mapping", "query_start_loc", "seq_lens", "logits_indices"):
        assert getattr(inputs, name).tolist() == getattr(batch, name)
    assert [row[: len(table)] for row, table in zip(inputs.block_tables.tolist(), tables, strict=True)] == tables
    assert inputs.max_query_len == max((n for n, _ in lens), default=0)
    memory = inputs.token_ids.untyped_storage().data_ptr()
    for value in vars(inputs).values():
        assert isinstance(value, int) or value.numel() == 0 or (value.data_ptr() - memory) % 16 == 0
