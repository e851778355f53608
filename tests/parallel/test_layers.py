"""A model split over ranks says what it says in one piece: every layout, every part that is split in its own way.

    tp 2, 4          heads and kv heads split; kv heads copied (4 ranks, 2 kv heads)
    pp 2, 3          5 layers in stages of 3 and 2; of 2, 2 and 1; of 1, 3 and 1
    tp 2 x pp 2      both

Logits of the tiny models have a standard deviation of 6, so TOLERANCE is the rounding of another order of summation."""

from random import Random

import pytest
import torch

from minipaged.batch import Row
from minipaged.parallel.place import Layout
from minipaged.sampling import sample
from minipaged.sampling_params import SamplingParams
from tests.parallel.jobs import once_with_bias, run, run_alone, say_with_loud_padding
from tests.tiny import tiny_model

TOLERANCE = {"atol": 2e-3, "rtol": 0.0}
LAYOUTS = {
    "tp2": Layout(tensor_size=2),
    "tp4": Layout(tensor_size=4),
    "pp2": Layout(num_stages=2),
    "pp3": Layout(num_stages=3),
    "pp3-listed": Layout(num_stages=3, stage_layers=(1, 3, 1)),
    "tp2-pp2": Layout(tensor_size=2, num_stages=2),
}
MODELS = {
    "llama": ("llama", {}),
    "biases, odd words": ("llama", {"attention_bias": True, "mlp_bias": True, "vocab_size": 33}),
    "q/k norm, tied odd words": ("qwen3", {"attention_bias": True, "tie_word_embeddings": True, "vocab_size": 33}),
    "qkv bias, windows, odd features": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1, "intermediate_size": 49},
    ),
    "one kv head, tied": ("llama", {"num_key_value_heads": 1, "tie_word_embeddings": True}),
}
CHUNKS = [11, 1, 1, 7]
L, M, F32 = 5, 32, 4


@pytest.fixture(scope="module", params=MODELS)
def model(request, tmp_path_factory):
    """A folder, tokens, and the logits of the model in one piece."""
    kind, overrides = MODELS[request.param]
    folder = tiny_model(tmp_path_factory.mktemp("model"), kind, num_hidden_layers=L, **overrides)
    rng = Random(3)
    tokens = [rng.randrange(overrides.get("vocab_size", 96)) for _ in range(sum(CHUNKS))]
    return str(folder), tokens, run_alone(str(folder), tokens, CHUNKS)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_logits_are_those_of_the_model_in_one_piece(crew, model, layout):
    folder, tokens, expected = model
    said = [torch.tensor(logits) for logits, *_ in crew.run(layout, run, folder, tokens, CHUNKS)]
    answer = said.pop(layout.answering_rank)
    assert answer.shape == expected.shape  # words alone: what padding would say is cut off
    torch.testing.assert_close(answer, expected, **TOLERANCE)
    best = expected.topk(2).values
    clear = best[:, 0] - best[:, 1] > 2 * TOLERANCE["atol"]
    assert clear.float().mean() > 0.9
    assert torch.equal(answer.argmax(-1)[clear], expected.argmax(-1)[clear])
    assert all(len(logits) == 0 for logits in said)  # one rank draws, nobody else could


@pytest.mark.parametrize("size", [2, 4])
def test_padding_is_never_drawn(crew, tmp_path, size):
    """33 words on 2 or 4 ranks: 34 or 36 rows."""
    folder, tokens = str(tiny_model(tmp_path, vocab_size=33)), list(range(33))
    logits = torch.tensor(crew.run(Layout(size), say_with_loud_padding, folder, tokens)[0])
    assert logits.shape == (33, 33)
    torch.testing.assert_close(logits, run_alone(folder, tokens, [33]), **TOLERANCE)
    for draw in range(20):
        rows = [Row(SamplingParams(temperature=5.0), seed=draw, position=i) for i in range(33)]
        assert all(0 <= token < 33 for token in sample(logits, rows))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_split_too(crew, tmp_path, dtype):
    folder, tokens = str(tiny_model(tmp_path)), list(range(20))
    expected = run_alone(folder, tokens, [20])
    logits = torch.tensor(crew.run(Layout(tensor_size=2), run, folder, tokens, [20], dtype)[0][0])
    assert (logits - expected).std() < 0.05 * expected.std()


@pytest.mark.parametrize("size", [2, 4])
def test_a_bias_is_added_once(crew, size):
    assert crew.run(Layout(tensor_size=size), once_with_bias) == [[1.0] * 3] * size


def test_a_layer_has_two_sums_and_a_stage_hands_on_once(crew, tmp_path):
    folder, T, V = str(tiny_model(tmp_path, num_hidden_layers=L)), sum(CHUNKS), 96
    steps, ring = len(CHUNKS), T * M * F32  # of two ranks each sends in all as much as there is to sum
    (_, _, first), (_, messages, second) = crew.run(Layout(tensor_size=2), run, folder, [0] * T, CHUNKS)
    assert messages == {"all_reduce": steps * (2 * L + 1), "gather": steps}  # one for the embedding
    assert first == {"all_reduce": (2 * L + 1) * ring}
    assert second == {"all_reduce": (2 * L + 1) * ring, "gather": T * V // 2 * F32}
    assert [said[2] for said in crew.run(Layout(num_stages=3), run, folder, [0] * T, CHUNKS)] == [
        {"send": T * M * F32},
        {"send": T * M * F32},
        {},
    ]
