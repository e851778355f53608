"""Floors are arithmetic: what must be computed and read, over what the machine can do."""

import json

import pytest

from benchmarks.floors import count_attention, count_parameters, count_shared, count_work, find_floors, find_part_floors
from benchmarks.workloads import Request, make_requests
from minipaged.models.config import parse_model_config

SMOLLM2 = parse_model_config(
    {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 49152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "tie_word_embeddings": True,
    }
)
LIMITS = {"product_gflop_s": 135.0, "memory_read_gb_s": 30.0}


def test_parameters_of_the_default_model():
    assert [round(count / 1e6) for count in count_parameters(SMOLLM2)] == [106, 28]


def test_one_stream_waits_for_memory():
    floors = find_floors(SMOLLM2, make_requests("W1", 49152, 0), LIMITS)
    assert floors["decode_tokens_per_s"] == pytest.approx(30e9 / 538e6, rel=0.01)
    assert floors["ttft_s"] == pytest.approx(128 * 0.212 / 135, rel=0.05)


@pytest.mark.parametrize(
    ("workload", "figure", "expected"),
    [
        ("W2", "output_tokens_per_s", 263),
        ("W3", "output_tokens_per_s", 32),
        ("W3", "shared", 225),
        ("W4", "prompt_tokens_per_s", 545),
    ],
)
def test_many_tokens_wait_for_products(workload, figure, expected):
    floors = find_floors(SMOLLM2, make_requests(workload, 49152, 0), LIMITS)
    assert floors[figure] == pytest.approx(expected, rel=0.05)


def test_work_of_two_small_requests_by_hand():
    layers, head = count_parameters(SMOLLM2)
    work = count_work(SMOLLM2, [Request([7, 8, 9], 2), Request([7, 8], 1)])
    assert work.flop == 2 * layers * (4 + 2) + 2 * head * 3 + 2 * 30 * 9 * 64 * (4**2 + 2**2)
    assert work.num_bytes == 2 * 4 * (layers + head)
    shared = count_work(SMOLLM2, [Request([7, 8, 9], 2), Request([7, 8], 1)], num_shared=2)
    assert work.flop - shared.flop == 2 * layers * 2 + 2 * 30 * 9 * 64 * 2**2


def test_attention_of_two_chunks_by_hand():
    work = count_attention(SMOLLM2, [(2, 3), (9, 1)])
    assert work.flop == 4 * 30 * 9 * 64 * ((3 + 4 + 5) + 10)
    assert work.num_bytes == 2 * 4 * 30 * 3 * 64 * (5 + 10)


def test_parts_have_floors_step_by_step():
    layers, head = count_parameters(SMOLLM2)
    reading = 4 * (layers + head) / 30e9  # one row or two: the weights must come from memory
    floors = find_part_floors(SMOLLM2, [{"a": 2}, {"a": 1, "b": 1}], {"a": 2, "b": 5}, LIMITS)
    assert floors["products"] == pytest.approx(2 * reading)
    long = find_part_floors(SMOLLM2, [{"a": 1000}, {"a": 24}], {"a": 1024}, LIMITS)  # only the second step has a row
    flop = 2 * layers * 1000 / 135e9, 2 * (layers * 24 + head) / 135e9
    assert long["products"] == pytest.approx(flop[0] + max(flop[1], reading))
    assert long["attention"] > floors["attention"] > 0


def test_shared_tokens_are_counted_from_the_start_only():
    assert count_shared([Request([1, 2, 3], 1), Request([1, 2, 4], 1), Request([1, 2, 3, 5], 1)]) == 2
    assert count_shared([Request([1, 2], 1), Request([3, 2], 1)]) == 0


def test_floors_are_plain_numbers():
    json.dumps(find_floors(SMOLLM2, make_requests("W3", 49152, 0, scale=0.1), LIMITS), allow_nan=False)
