"""Portions are disjoint, complete and in order, and a model that cannot be split is refused with what would work."""

import pytest

from minipaged.models.config import parse_model_config
from minipaged.parallel.portion import Nth, split, split_layers, split_model
from tests.models.configs import LLAMA
from tests.portions import judge

DEFAULT_MODEL = {
    **LLAMA,
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
}


def portion(tensor=(0, 1), pipeline=(0, 1), stage_layers=None, **overrides):
    return split_model(parse_model_config({**DEFAULT_MODEL, **overrides}), Nth(*tensor), Nth(*pipeline), stage_layers)


def test_portions_are_disjoint_complete_and_in_order():
    judge()


@pytest.mark.parametrize(
    ("num_layers", "num_stages", "sizes"),
    [(10, 3, [4, 3, 3]), (30, 4, [8, 7, 8, 7]), (30, 2, [15, 15]), (5, 5, [1] * 5), (7, 1, [7])],
)
def test_layers_come_out_as_even_as_can_be(num_layers, num_stages, sizes):
    assert [len(layers) for layers in split_layers(num_layers, num_stages)] == sizes


def test_layers_can_be_listed():
    assert split_layers(30, 3, (10, 12, 8)) == [range(10), range(10, 22), range(22, 30)]


@pytest.mark.parametrize("listed", [(10, 12, 9), (10, 20), (10, 10, 9, 1), (0, 20, 10), (-1, 21, 10), ()])
def test_a_list_that_is_not_the_model_is_refused(listed):
    numbers = ",".join(map(str, listed))
    with pytest.raises(ValueError, match=rf"pipeline_layers {numbers} are .* the model has 30 .*parallel_size is 3"):
        split_layers(30, 3, listed)


def test_fewer_layers_than_stages_are_refused():
    with pytest.raises(ValueError, match="pipeline_parallel_size 4 exceeds the model's 3 layers"):
        split_layers(3, 4)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "tensor_size", "message"),
    [
        (9, 3, 2, "tensor_parallel_size 2 does not divide 9 query heads and 3 kv heads; 1, 3 or 9 would"),
        (9, 3, 18, "tensor_parallel_size 18 does not divide .*; 1, 3 or 9 would"),
        (12, 3, 2, "tensor_parallel_size 2 .*; 1, 3, 6 or 12 would"),
        (7, 7, 2, "tensor_parallel_size 2 .*; 1 or 7 would"),
        (8, 8, 3, "tensor_parallel_size 3 .*; 1, 2, 4 or 8 would"),
        (1, 1, 2, "tensor_parallel_size 2 .*; 1 would"),
    ],
)
def test_heads_that_do_not_come_out_even_are_refused_with_what_would_work(heads, kv_heads, tensor_size, message):
    with pytest.raises(ValueError, match=message):
        portion(tensor=(0, tensor_size), num_attention_heads=heads, num_key_value_heads=kv_heads)


def test_a_third_of_the_default_model():
    layers, heads, kv_heads, features, vocabulary = portion(tensor=(1, 3), pipeline=(1, 2))
    assert (layers, heads, kv_heads) == (range(15, 30), range(3, 6), range(1, 2))
    assert (features, vocabulary) == (range(512, 1024), range(16384, 32768))


def test_kv_heads_are_copied_when_there_are_more_ranks():
    portions = [portion(tensor=(rank, 9)) for rank in range(9)]
    assert [list(p.kv_heads) for p in portions] == [[0], [0], [0], [1], [1], [1], [2], [2], [2]]
    assert [list(p.heads) for p in portions] == [[i] for i in range(9)]


def test_a_vocabulary_is_padded_until_all_have_the_same_number_of_rows():
    for size, rows in ((2, 17), (4, 9)):
        shares = [
            portion(tensor=(rank, size), num_attention_heads=4, num_key_value_heads=4, vocab_size=33)
            for rank in range(size)
        ]
        assert [len(share.vocabulary) for share in shares] == [rows] * size
        assert shares[-1].vocabulary.stop == rows * size


def test_parts_of_nothing_are_empty():
    assert split(2, 4) == [range(1), range(1, 1), range(1, 2), range(2, 2)]
