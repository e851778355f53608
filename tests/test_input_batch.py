"""The tensors say what the lists said."""

import torch

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
