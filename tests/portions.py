"""What splitting must keep, whatever is split over however many: the judge of parallel/portion.py.

Every (heads, kv heads, ranks) of small numbers, and every (layers, stages)."""

from itertools import pairwise, product

from minipaged.models.config import parse_model_config
from minipaged.parallel.portion import Nth, split_layers, split_model
from tests.models.configs import LLAMA


def judge():
    for num_layers, num_stages in product(range(1, 13), repeat=2):
        if num_stages <= num_layers:
            check_layers(split_layers(num_layers, num_stages), num_layers)
    for heads, kv_heads in product((1, 2, 3, 4, 6, 8, 9, 12), repeat=2):
        if heads % kv_heads == 0:
            for size in (1, 2, 3, 4, 6, 8, 9):
                check_ranks(heads, kv_heads, size)


def in_a_row(parts, total):
    """Whether parts follow one another from 0 to total."""
    return (parts[0].start, parts[-1].stop) == (0, total) and all(a.stop == b.start for a, b in pairwise(parts))


def check_layers(stages, num_layers):
    sizes = [len(layers) for layers in stages]
    assert in_a_row(stages, num_layers)
    assert min(sizes) > 0
    assert max(sizes) - min(sizes) <= 1
    assert sizes[-1] == min(sizes), "the stage with the head is not the largest"


def check_ranks(heads, kv_heads, size):
    shape = {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": 2}
    config = parse_model_config({**LLAMA, **shape, "intermediate_size": 13, "vocab_size": 33})
    fits = heads % size == 0 and (kv_heads % size == 0 or size % kv_heads == 0)
    try:
        ranks = [split_model(config, Nth(rank, size), Nth()) for rank in range(size)]
    except ValueError:
        assert not fits, f"{heads} heads, {kv_heads} kv heads, {size} ranks were refused"
        return
    assert fits, f"{heads} heads, {kv_heads} kv heads, {size} ranks were not refused"
    assert in_a_row([portion.heads for portion in ranks], heads)
    assert in_a_row([portion.features for portion in ranks], 13)
    assert in_a_row([portion.vocabulary for portion in ranks], -(-33 // size) * size)
    assert len({(len(portion.heads), len(portion.kv_heads), len(portion.vocabulary)) for portion in ranks}) == 1
    for portion in ranks:
        # a kernel takes head i of a rank's queries to kv head i // group of its keys
        group = len(portion.heads) // len(portion.kv_heads)
        for i, head in enumerate(portion.heads):
            assert portion.kv_heads[i // group] == head // (heads // kv_heads)
    assert {head for portion in ranks for head in portion.kv_heads} == set(range(kv_heads))
