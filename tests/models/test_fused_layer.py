"""One call and eleven calls are the same layer, to the last bit."""

import math

import pytest
import torch

from minipaged.batch import Batch
from minipaged.input_batch import to_device
from minipaged.kernels import linear_int8
from minipaged.kv_cache import KVCache
from minipaged.models import fused_layer, linear
from minipaged.models.config import read_model_config
from minipaged.models.decoder import Decoder
from minipaged.models.fused_layer import FusedLayer, fuse
from minipaged.models.weights import load_weights
from minipaged.ops import choose_ops
from minipaged.parallel.place import Layout
from tests.parallel.crew import places
from tests.tiny import tiny_model

CPU = torch.device("cpu")
NUM_BLOCKS, BLOCK_SIZE = 12, 4
TABLES = [[3, 7, 1], [10, 0, 5], [8, 2, 11]]
WHOLE_BLOCKS = {"hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 4, "head_dim": 16}
STEPS = [  # (tokens known before, tokens of this step) of each sequence
    [(0, 9), (0, 7), (0, 1)],
    [(9, 1)],
    [(10, 1), (7, 3), (1, 5)],
    [(11, 1), (10, 1), (6, 1)],
]


@pytest.fixture(autouse=True)
def few_rows_are_up_to_nine(monkeypatch):
    for module in (linear_int8, fused_layer):
        monkeypatch.setattr(module, "num_few", lambda: 9)
    for module in (linear, fused_layer):
        monkeypatch.setattr(module, "FEW", 9)


def load(folder, quantization="int8", dtype=torch.float32, place=None):
    model = Decoder(
        read_model_config(folder), choose_ops("torch", dtype, CPU), dtype, CPU, place, quantization=quantization
    )
    load_weights(model, folder)
    model.pack()
    return model


def make_batch(step):
    tokens, positions, slots, starts, rows = [], [], [], [0], []
    for table, (known, new) in zip(TABLES, step, strict=False):
        span = range(known, known + new)
        positions += span
        tokens += [(17 * p + 5 * table[0]) % 96 for p in span]
        slots += [table[p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE for p in span]
        starts.append(len(tokens))
        rows.append(len(tokens) - 1)
    lens = [known + new for known, new in step]
    return to_device(Batch(tokens, positions, slots, starts, lens, TABLES[: len(step)], rows, rows, [], []), CPU)


@torch.inference_mode()
def run(model, kv_dtype=torch.float32):
    """Logits of all steps, and what the cache holds then."""
    cache = KVCache(NUM_BLOCKS, BLOCK_SIZE, model.portion, model.config.head_dim, kv_dtype, CPU)
    cache.data.fill_(math.nan if kv_dtype == torch.float32 else 0)
    return [model(make_batch(step), cache) for step in STEPS], cache.data


def load_fused(folder, quantization):
    """A model all of whose layers are fused."""
    model = load(folder, quantization)
    if quantization == "none" and model.layers[0].mlp.down_proj.linear.blocks is None:
        pytest.skip("this CPU's oneDNN keeps a matrix in another order")
    assert {type(layer) for layer in model.stack} == {FusedLayer}
    return model


@pytest.mark.parametrize("quantization", ["none", "int8"])
@pytest.mark.parametrize("shape", [{}, {"kind": "mistral"}, {"num_key_value_heads": 1, "head_dim": 32}])
@pytest.mark.parametrize("kv_dtype", [torch.float32, torch.int8])
def test_one_call_says_what_eleven_say(tmp_path, monkeypatch, shape, kv_dtype, quantization):
    model = load_fused(tiny_model(tmp_path, **WHOLE_BLOCKS | shape), quantization)
    calls, fused = [], model.stack[0].fused
    monkeypatch.setattr(model.stack[0], "fused", lambda *args: calls.append(args) or fused(*args))
    logits, kept = run(model, kv_dtype)
    assert len(calls) == (3 if kv_dtype == torch.float32 else 0), "three steps are short, and their cache is not narrow"
    model.stack = [*model.layers]
    expected, expected_kept = run(model, kv_dtype)
    assert all(map(torch.equal, logits, expected))
    assert torch.equal(kept.nan_to_num(1e9), expected_kept.nan_to_num(1e9))
    assert all(rows.isfinite().all() for rows in logits)


@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_one_call_of_a_large_layer_for_several_threads(tmp_path, monkeypatch, quantization):
    shape = {"hidden_size": 576, "intermediate_size": 1536, "num_attention_heads": 9, "num_key_value_heads": 3}
    model = load_fused(tiny_model(tmp_path, num_hidden_layers=1, head_dim=64, **shape), quantization)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    batch, pool = make_batch(STEPS[3]), KVCache(NUM_BLOCKS, BLOCK_SIZE, model.portion, 64, torch.float32, CPU)
    change, x = torch.randn(2, 3, 576, generator=torch.Generator().manual_seed(0))
    change[1, 7] = math.nan
    pool.data.normal_(generator=torch.Generator().manual_seed(1))
    known = pool.data.clone()
    ways = {}
    for name, layer in (("one", model.stack[0]), ("eleven", model.layers[0])):
        pool.data.copy_(known)
        ways[name] = *layer(change, x, model.rotary.cos_sin(batch.positions), pool.layers[0], batch), pool.data.clone()
    for one, eleven in zip(ways["one"], ways["eleven"], strict=True):
        torch.testing.assert_close(one, eleven, rtol=0, atol=0, equal_nan=True)
    assert ways["one"][0].isnan().any(1).tolist() == [False, True, False], "a row of NaN stays alone"


@pytest.mark.parametrize(
    ("shape", "quantization"),
    [({}, "none"), ({"intermediate_size": 64}, "int4"), ({"kind": "qwen2"}, "int8"), ({"kind": "qwen3"}, "int8")],
    ids=["no whole blocks", "int4", "biases", "norms of heads"],
)
def test_a_layer_with_something_else_in_it_stays_as_it_is(tmp_path, shape, quantization):
    model = load(tiny_model(tmp_path, **shape), quantization)
    assert model.stack == model.layers


def test_a_layer_of_another_dtype_or_of_several_ranks_stays_as_it_is(tmp_path):
    folder = tiny_model(tmp_path)
    assert isinstance(fuse(load(folder).layers[0]), FusedLayer)
    assert not isinstance(fuse(load(folder, dtype=torch.bfloat16).layers[0]), FusedLayer)
    assert not isinstance(fuse(load(folder, place=places(Layout(tensor_size=2))[0]).layers[0]), FusedLayer)
