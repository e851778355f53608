"""A recording says what an eager step says, whatever was in its buffers before; padding writes nowhere.

A tape stands for a CUDA graph: it runs the very work that would have been captured, on the very tensors."""

import gc
import weakref
from contextlib import contextmanager

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from levels import load
from minipaged import cuda_recorder, graphs
from minipaged.batch import Batch, Known, Row
from minipaged.config import EngineConfig
from minipaged.graphs import Eager, Graphs, choose_forward, choose_sizes, choose_width
from minipaged.loading import load_model
from minipaged.sampling_params import SamplingParams
from tests.test_identity import PROMPTS
from tests.tiny import VOCAB_SIZE, tiny_model

ROW = Row(SamplingParams(temperature=0), 0, 0)
BLOCK_SIZE = 4


class Tape:
    """Runs the work when it is recorded, as the first of the two times, and whenever it is replayed."""

    def __init__(self):
        self.num_bytes, self.num_recorded, self.num_replayed = 0, 0, 0

    def __call__(self, work):
        work()
        self.num_recorded += 1

        def replay():
            self.num_replayed += 1
            work()

        return replay


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return load_model(EngineConfig(model=str(tiny_model(tmp_path_factory.mktemp("tiny"))), max_num_seqs=9))


@pytest.fixture
def recorded(model):
    return Graphs(model.eager, 9, VOCAB_SIZE, Tape())


def decodes(*lens, blocks=None):
    """A token each for sequences that have so many keys with it, in blocks of their own."""
    blocks, tables = blocks or list(range(40)), []
    for n in lens:
        needed = -(-n // BLOCK_SIZE)
        tables.append(blocks[:needed])
        blocks = blocks[needed:]
    slots = [t[(n - 1) // BLOCK_SIZE] * BLOCK_SIZE + (n - 1) % BLOCK_SIZE for t, n in zip(tables, lens, strict=True)]
    S, positions = len(lens), [n - 1 for n in lens]
    tokens = [(7 * n) % VOCAB_SIZE for n in lens]
    starts = list(range(S + 1))
    return Batch(tokens, positions, slots, starts, list(lens), tables, starts[:-1], starts, [ROW] * S, [])


def cache_of(model):
    torch.manual_seed(0)
    cache = model.new_kv_cache(40, BLOCK_SIZE)
    cache.data.copy_(torch.randn(cache.data.shape))
    return cache


@torch.inference_mode()
def check(model, forward, cache, batch):
    """The recording's logits and its traces in the memory are those of an eager step."""
    other = model.new_kv_cache(40, BLOCK_SIZE)
    other.data.copy_(cache.data)
    logits = forward(batch, cache).clone()
    torch.testing.assert_close(logits, model.eager(batch, other))
    torch.testing.assert_close(cache.data, other.data)
    same = cache.data.view(-1) == other.data.view(-1)
    assert same.sum() >= len(same) - len(batch.slot_mapping) * 2 * 2 * 2 * 16, (
        "nothing but this step's slots is written"
    )


@given(st.integers(1, 300), st.data())
def test_every_batch_up_to_the_largest_has_a_size_with_few_rows_to_spare(most, data):
    sizes = choose_sizes(most)
    num_seqs = data.draw(st.integers(1, most))
    size = next(size for size in sizes if size >= num_seqs)
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == most
    assert size - num_seqs <= 7
    assert num_seqs not in (1, 2, 4) or size == num_seqs


@given(st.integers(0, 10**6))
def test_a_table_has_a_width_of_its_own_or_the_next(longest):
    width = choose_width(longest)
    assert width >= longest
    assert width == graphs.NARROWEST or width < graphs.WIDER * longest


@pytest.mark.parametrize("kept", ["auto", "int8"])
def test_recordings_say_what_eager_steps_say_one_after_the_other(model, tmp_path, kept):
    if kept == "int8":
        model = load_model(EngineConfig(model=str(tiny_model(tmp_path)), kv_cache_dtype=kept))
    forward = Graphs(model.eager, 9, VOCAB_SIZE, Tape())
    for lens in [(5, 3, 9), (6,), (7, 4, 1, 1, 2), (6, 2, 30, 4, 5, 6, 7), (8, 1, 2, 3, 4), (2,) * 9, (5, 3, 9)]:
        with torch.inference_mode():
            batch, caches = decodes(*lens), [model.new_kv_cache(40, BLOCK_SIZE) for _ in range(2)]
            for cache in caches:
                cache.data.view(torch.int8).zero_()
                cache.scales.fill_(0.5)
            logits = forward(batch, caches[0]).clone()
            torch.testing.assert_close(logits, model.eager(batch, caches[1]))
            for data in ("data", "scales"):
                left, right = (getattr(cache, data).view(torch.int8) for cache in caches)
                assert left.equal(right)


def test_a_recording_forgets_whom_it_held_before(model, recorded):
    cache = cache_of(model)
    check(model, recorded, cache, decodes(9, 8, 7, 6, 5))
    cache.data.fill_(torch.nan)
    with torch.inference_mode():
        recorded(decodes(3, blocks=[30]), cache)  # size 1
        recorded(decodes(3, 2, 2, 2, 1, blocks=list(range(30, 40))), cache)  # size 8, as the first
    assert recorded.record.num_recorded == 2  # sizes 8 and 1
    written = cache.data.isfinite().any(-1).any(1).any(0)  # [B, K, P] of any layer
    assert not written[:30].any()


def test_a_size_is_recorded_once_and_for_each_memory(model, recorded):
    first, second = cache_of(model), cache_of(model)
    with torch.inference_mode():
        for cache in (first, first, second, first):
            recorded(decodes(3, 4), cache)
            recorded(decodes(3, 4, 5), cache)
    assert (recorded.record.num_recorded, recorded.record.num_replayed) == (4, 8)


NOT_RECORDED = {
    "a prompt": Batch([1, 2], [0, 1], [0, 1], [0, 2], [2], [[0]], [1], [0, 1], [ROW], []),
    "a chunk that is not the last": Batch([1, 2], [0, 1], [0, 1], [0, 2], [2], [[0]], [], [0, 0], [], []),
    "one token of a prompt": Batch([1], [0], [0], [0, 1], [1], [[0]], [], [0, 0], [], []),
    "a guess": Batch([1, 2], [4, 5], [4, 5], [0, 2], [6], [[0, 1]], [0, 1], [0, 2], [ROW, ROW], []),
    "a row that is measured": Batch([1], [0], [0], [0, 1], [1], [[0]], [0], [0, 0], [], [Known(0, 5, 0)]),
    "more than the largest size": decodes(*[2] * 10),
}


@pytest.mark.parametrize("name", NOT_RECORDED)
def test_whatever_else_runs_eagerly(model, recorded, name):
    check(model, recorded, cache_of(model), NOT_RECORDED[name])
    assert recorded.record.num_recorded == 0


def test_recordings_go_with_their_memory(model):
    forward = Graphs(model.eager, 2, VOCAB_SIZE, lambda work: lambda: None)  # a graph keeps addresses, nothing else
    cache = cache_of(model)
    with torch.inference_mode():
        forward(decodes(3), cache)
    assert len(forward.recordings) == 1
    gone = weakref.ref(cache)
    del cache
    gc.collect()
    assert gone() is None
    assert len(forward.recordings) == 0


def test_what_could_not_be_recorded_is_tried_again(model):
    class Torn(Tape):
        def __call__(self, work):
            if not self.num_bytes:
                self.num_bytes = 1
                raise RuntimeError("torn")
            return super().__call__(work)

    forward, cache = Graphs(model.eager, 2, VOCAB_SIZE, Torn()), cache_of(model)
    with pytest.raises(RuntimeError, match="torn"), torch.inference_mode():
        forward(decodes(3), cache)
    check(model, forward, cache, decodes(3))


def test_the_largest_size_can_be_recorded_ahead_and_writes_nothing(model, recorded):
    cache = model.new_kv_cache(1, 16)
    cache.data.fill_(torch.nan)
    recorded.reserve(cache)
    assert recorded.record.num_recorded == 1
    assert cache.data.isnan().all()
    assert model.eager.reserve(cache) is None


@pytest.mark.parametrize("level", [1, 3, 5, 6])
def test_an_engine_says_the_same_whether_its_steps_are_recorded(model, monkeypatch, level):
    sizes = {"num_blocks": 128, "block_size": 4, "max_model_len": 64, "max_num_seqs": 3}
    sizes |= {"num_speculative_tokens": 2} if level == 5 else {}
    said, params = [], SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    for forward in (model.eager, Graphs(model.eager, 3, VOCAB_SIZE, Tape())):
        monkeypatch.setattr(model, "forward", forward)
        engine = load(level).Engine(EngineConfig(**sizes), model)
        ids, outputs = [engine.add_request(prompt, params) for prompt in PROMPTS], {}
        while engine.has_unfinished_requests():
            outputs.update({output.request_id: output.outputs[0].token_ids for output in engine.step()})
        said.append([outputs[i] for i in ids])
    assert said[0] == said[1]
    assert forward.record.num_replayed > (1 if level == 5 else 10)


CUDA = EngineConfig(device="cuda", dtype="bfloat16", attention_backend="triton", max_num_seqs=5)
EAGER = {
    "a CPU": {"device": "cpu"},
    "torch's attention": {"attention_backend": "torch"},
    "asked for": {"enforce_eager": True},
    "several ranks": {"tensor_parallel_size": 2},
    "shared experts": {"enable_expert_parallel": True, "data_parallel_size": 2},
    "experts": {},
}


@pytest.mark.parametrize("why", EAGER)
def test_steps_are_eager_where_they_have_to_be(model, why):
    config = EngineConfig(**{"device": "cuda", "dtype": "bfloat16", "attention_backend": "triton", **EAGER[why]})
    assert choose_forward(model.eager, config, can_record=why != "experts", vocab_size=8) is model.eager


def test_a_gpu_records(model, monkeypatch):
    monkeypatch.setattr(cuda_recorder, "CudaRecorder", lambda device: Tape())
    forward = choose_forward(model.eager, CUDA, can_record=True, vocab_size=VOCAB_SIZE)
    assert isinstance(forward, Graphs)
    assert forward.sizes == [1, 2, 4, 5]


def test_work_is_captured_once_everything_it_needs_is_compiled(monkeypatch):
    """The driver's part is played by what it would be told."""
    told, reserved = [], iter([100, 160, 160, 160])

    class Graph:
        def replay(self):
            told.append("replay")

    @contextmanager
    def capture(graph, pool):
        told.append(f"begin in {pool}")
        yield
        told.append("end")

    for name, fake in {
        "graph_pool_handle": lambda: "pool",
        "synchronize": lambda device: told.append("wait"),
        "memory_reserved": lambda device: next(reserved),
        "CUDAGraph": Graph,
        "graph": capture,
    }.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    recorder = cuda_recorder.CudaRecorder(torch.device("cuda"))
    replay = recorder(lambda: told.append("work"))
    replay()
    assert told == ["work", "wait", "begin in pool", "work", "end", "replay"]
    recorder(lambda: None)
    assert recorder.num_bytes == 60


@pytest.mark.gpu
def test_a_gpu_says_the_same_whether_its_steps_are_recorded(tmp_path):
    folder, said = str(tiny_model(tmp_path, head_dim=64)), []
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    for eager in (True, False):
        config = EngineConfig(model=folder, dtype="float32", num_blocks=64, block_size=16, max_num_seqs=3)
        engine = load(3).Engine(config, load_model(EngineConfig(model=folder, dtype="float32", enforce_eager=eager)))
        ids, outputs = [engine.add_request(prompt, params) for prompt in PROMPTS], {}
        while engine.has_unfinished_requests():
            outputs.update({output.request_id: output.outputs[0].token_ids for output in engine.step()})
        said.append([outputs[i] for i in ids])
        assert isinstance(engine.model.forward, Eager if eager else Graphs)
    assert said[0] == said[1]
