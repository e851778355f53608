"""Ours and transformers' logits, from the same folder, at every position; and the same however a batch is cut.

Logits of the tiny models have a standard deviation of 6, so TOLERANCE is rounding."""

from functools import cache
from random import Random

import pytest
import torch

from minipaged.batch import Batch
from minipaged.config import EngineConfig
from minipaged.loading import load_model
from tests.tiny import KINDS, ROPES, VOCAB_SIZE, greedy_tokens, reference_logits, tiny_model

TOLERANCE = {"atol": 2e-3, "rtol": 0.0}
FAR = 1000  # beyond every rope's original length
SHAPES = [
    {},
    {"tie_word_embeddings": True, "num_key_value_heads": 4},
    {"num_key_value_heads": 1, "head_dim": 24},
    {
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "hidden_size": 48,
        "head_dim": 10,
        "tie_word_embeddings": True,
    },
]
MODELS = [  # every family with every rope, and each of them with every shape
    (kind, rope, SHAPES[(i + j) % len(SHAPES)]) for i, kind in enumerate(KINDS) for j, rope in enumerate(ROPES)
]
FLAGS = [
    ("llama", {"attention_bias": True, "mlp_bias": True}),
    ("qwen3", {"attention_bias": True}),
    ("mistral", {"sliding_window": None}),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}),
    (
        "qwen3",
        {"use_sliding_window": True, "sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"]},
    ),
]


def random_tokens(num_tokens, seed=0):
    rng = Random(seed)
    return [rng.randrange(VOCAB_SIZE) for _ in range(num_tokens)]


@pytest.fixture(scope="module")
def serve(tmp_path_factory):
    """serve(kind, **overrides): a tiny model's folder and our runner of it."""

    @cache
    def make(kind, overrides):
        folder = tiny_model(tmp_path_factory.mktemp(kind), kind, **dict(overrides))
        return folder, load_model(EngineConfig(model=str(folder)))

    def serve(kind, **overrides):
        return make(kind, tuple((key, value) for key, value in overrides.items() if key != "layer_types"))

    return serve


class Sequence:
    """One sequence's tokens and blocks, run chunk by chunk; its first token may stand far from position 0."""

    def __init__(self, tokens, block_table, block_size, first_position=0):
        self.tokens, self.block_table, self.block_size, self.done = tokens, block_table, block_size, 0
        self.first_position = first_position

    def slots(self, start, end):
        return [
            self.block_table[p // self.block_size] * self.block_size + p % self.block_size for p in range(start, end)
        ]


def run(model, kv_cache, chunks):
    """One step of (sequence, number of tokens); the logits of all of them, [T, V]."""
    batch = Batch.empty()
    for seq, num_tokens in chunks:
        start, seq.done = seq.done, seq.done + num_tokens
        batch.token_ids.extend(seq.tokens[start : seq.done])
        batch.positions.extend(range(seq.first_position + start, seq.first_position + seq.done))
        batch.slot_mapping.extend(seq.slots(start, seq.done))
        batch.query_start_loc.append(len(batch.token_ids))
        batch.seq_lens.append(seq.done)
        batch.block_tables.append(seq.block_table[: -(-seq.done // seq.block_size)])
    batch.logits_indices.extend(range(len(batch.token_ids)))
    return model(batch, kv_cache)


def logits_in_chunks(model, tokens, chunk_lens, block_size=16, first_position=0):
    """All logits of one sequence that is run in these chunks, in memory poisoned with NaN and handed out backwards."""
    num_blocks = -(-len(tokens) // block_size)
    kv_cache = model.new_kv_cache(num_blocks + 1, block_size)
    kv_cache.data.fill_(torch.nan)
    seq = Sequence(tokens, list(range(num_blocks, 0, -1)), block_size, first_position)
    return torch.cat([run(model, kv_cache, [(seq, n)]) for n in chunk_lens])


@pytest.mark.parametrize(("kind", "rope", "shape"), MODELS)
def test_logits_are_those_of_transformers_at_every_position(serve, kind, rope, shape):
    folder, model = serve(kind, rope=rope, **shape)
    tokens = random_tokens(24)
    for first in (0, FAR):
        expected = reference_logits(folder, tokens, first_position=first)
        torch.testing.assert_close(logits_in_chunks(model, tokens, [24], first_position=first), expected, **TOLERANCE)


@pytest.mark.parametrize(("kind", "flags"), FLAGS)
def test_biases_and_windows_are_those_of_transformers(tmp_path, kind, flags):
    folder = tiny_model(tmp_path, kind, **flags)
    model, tokens = load_model(EngineConfig(model=str(folder))), random_tokens(60)
    torch.testing.assert_close(logits_in_chunks(model, tokens, [60]), reference_logits(folder, tokens), **TOLERANCE)


def test_a_config_from_before_rope_parameters_means_the_same(tmp_path):
    folder = tiny_model(tmp_path, rope="llama3")
    path, tokens = folder / "config.json", random_tokens(60)
    new = logits_in_chunks(load_model(EngineConfig(model=str(folder))), tokens, [60])
    path.write_text(path.read_text().replace('"rope_parameters"', '"rope_scaling"').replace('"rope_type"', '"type"'))
    old = logits_in_chunks(load_model(EngineConfig(model=str(folder))), tokens, [60])
    assert torch.equal(old, new)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "chunk_lens", [[1] * 40, [7, 7, 7, 7, 7, 5], [39, 1], [1, 39]], ids=["1s", "7s", "39+1", "1+39"]
)
def test_chunks_say_what_the_whole_says(serve, kind, chunk_lens):
    _, model = serve(kind)
    tokens = random_tokens(40)
    torch.testing.assert_close(
        logits_in_chunks(model, tokens, chunk_lens), logits_in_chunks(model, tokens, [40]), **TOLERANCE
    )


@pytest.mark.parametrize("kind", ["llama", "mistral"])
@pytest.mark.parametrize("block_size", [1, 4, 64])
def test_blocks_of_any_size_say_the_same(serve, kind, block_size):
    _, model = serve(kind)
    tokens = random_tokens(40)
    torch.testing.assert_close(
        logits_in_chunks(model, tokens, [11, 29], block_size), logits_in_chunks(model, tokens, [40]), **TOLERANCE
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_packed_batch_says_what_each_sequence_says_alone(serve, kind):
    _, model = serve(kind)
    prompts = [random_tokens(n, seed=n) for n in (9, 1, 30, 17)]
    kv_cache = model.new_kv_cache(num_blocks=20, block_size=4)
    kv_cache.data.fill_(torch.nan)
    blocks = iter(Random(1).sample(range(20), 20))
    sequences = [Sequence(prompt, [next(blocks) for _ in range(-(-len(prompt) // 4))], 4) for prompt in prompts]
    steps = [[4, 1, 10, 0], [5, 0, 1, 17], [0, 0, 19, 0]]
    said = [[] for _ in prompts]
    for step in steps:
        logits = run(model, kv_cache, [(seq, n) for seq, n in zip(sequences, step, strict=True) if n])
        for rows, part in zip(
            [rows for rows, n in zip(said, step, strict=True) if n], logits.split([n for n in step if n]), strict=True
        ):
            rows.append(part)
    for prompt, rows in zip(prompts, said, strict=True):
        torch.testing.assert_close(torch.cat(rows), logits_in_chunks(model, prompt, [len(prompt)]), **TOLERANCE)


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_tokens_are_those_of_transformers(serve, kind):
    folder, model = serve(kind)
    prompt = random_tokens(12, seed=5)
    expected = greedy_tokens(folder, [prompt], max_tokens=20)[0]
    logits = reference_logits(folder, prompt + expected)[11:-1]
    best = logits.topk(2).values
    assert (best[:, 0] - best[:, 1]).min() > 1e-3, "a near-tie proves nothing: choose another prompt"
    tokens = list(prompt)
    seq, kv_cache = Sequence(tokens, list(range(8)), 4), model.new_kv_cache(8, 4)
    while len(tokens) < 32:
        tokens.append(int(run(model, kv_cache, [(seq, len(tokens) - seq.done)])[-1].argmax()))
    assert tokens[12:] == expected


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_half_precision_runs_and_stays_near(serve, kind, dtype):
    folder, _ = serve(kind)
    model, tokens = load_model(EngineConfig(model=str(folder), dtype=dtype)), random_tokens(20)
    logits = logits_in_chunks(model, tokens, [9, 11])
    assert logits.dtype == torch.float32
    assert model.model.exit.lm_head.weight.dtype == model.new_kv_cache(1, 1).data.dtype == getattr(torch, dtype)
    expected = reference_logits(folder, tokens)
    assert (logits - expected).std() < 0.05 * expected.std()
