"""Where a rank stands decides what it is made of: its weights, its cache, what it says."""

import pytest

from minipaged.parallel.place import Layout, Place
from tests.parallel.jobs import load_part
from tests.tiny import tiny_model


def test_a_rank_knows_its_neighbours_and_one_of_all_answers():
    layout = Layout(tensor_size=2, num_stages=3)
    assert layout.num_ranks == 6
    assert layout.tensor_lines() == [[0, 1], [2, 3], [4, 5]]
    assert layout.pipeline_lines() == [[0, 2, 4], [1, 3, 5]]
    assert layout.answering_rank == 4


def test_alone_one_is_first_and_last():
    place = Place.alone()
    assert place.is_first
    assert place.is_last
    assert place.answers


@pytest.mark.parametrize("load_format", ["auto", "dummy"])
def test_each_rank_loads_its_part_and_counts_blocks_by_it(crew, tmp_path, load_format):
    folder = str(tiny_model(tmp_path, num_hidden_layers=5))
    whole = load_part(None, folder, load_format)
    ranks = crew.run(Layout(tensor_size=2, num_stages=2), load_part, folder, load_format)
    assert [rank["layers"] for rank in ranks] == [3, 3, 2, 2]
    for rank in ranks:
        # of the keys and values: half the heads, and some of the layers
        assert rank["block_bytes"] * 5 * 2 == whole["block_bytes"] * rank["layers"]
    norms = 32 * 4  # of M numbers, the only weights that everybody has
    own = [rank["weight_bytes"] - (2 * rank["layers"] + (i > 1)) * norms for i, rank in enumerate(ranks)]
    assert sum(own) == whole["weight_bytes"] - (2 * 5 + 1) * norms
    assert not any(rank["answers"] for rank in (*ranks[:2], ranks[3]))
    assert ranks[2]["answers"]
    assert all(rank["forward_s"] == 0.0 for rank in ranks)
