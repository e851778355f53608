"""The same operations for all, found again in the middle, and a manager that finds something else is no result."""

import importlib
import io
import json
import sys
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace

import pytest
from rich.console import Console

from benchmarks import allocator, allocator_work
from benchmarks.allocator import Comparison
from benchmarks.allocator_report import print_report
from benchmarks.allocator_work import OPERATIONS, Work
from benchmarks.allocator_worker import serve
from benchmarks.managers import make_manager

POOL = 1000
NUM_TEXTS = 63  # of 16 blocks, the last one shorter
COUNTS = {"adopt new": 16, "adopt known": 16, "decode": 4, "release": 16}


def measured(name, *pools):
    works = [Work(make_manager(name, num_blocks), num_blocks, "0/0") for num_blocks in pools]
    allocator_work.fill(works)
    return works, allocator_work.measure(works)


@pytest.mark.parametrize(("name", "num_found"), [("minipaged:sha256", 256), ("minipaged:plain", 0)])
def test_every_operation_is_timed_and_only_a_memory_finds_what_was_read_before(name, num_found):
    works, [found] = measured(name, POOL)
    assert {key: len(samples) for key, samples in found["samples"].items()} == COUNTS
    assert all(nanoseconds > 0 for samples in found["samples"].values() for nanoseconds in samples)
    assert found["num_known"] == [0] * (NUM_TEXTS + 16) + [num_found] * 16
    works[0].manager.blocks.check_integrity([])


def test_whatever_the_pool_the_operations_are_as_many():
    _, found = measured("minipaged:sha256", POOL, 4 * POOL)
    assert [{key: len(samples) for key, samples in part["samples"].items()} for part in found] == [COUNTS, COUNTS]
    assert [sum(part["num_known"]) for part in found] == [16 * 256] * 2


@pytest.mark.parametrize("num_blocks", [POOL, 1001, 5000])
def test_what_is_found_again_lies_in_the_middle_of_the_queue_when_it_is_found(num_blocks):
    work = Work(make_manager("minipaged:sha256", num_blocks), num_blocks, "0/0")
    work.fill()
    places = []
    for name, operation in work.operations():
        queue = list(work.manager.blocks.pool.free_block_queue)
        operation()
        if name == "adopt known":
            still = set(work.manager.blocks.pool.free_block_queue)
            places += [i / len(queue) for i, block in enumerate(queue) if block not in still][1:]  # the first is new
    assert len(places) == 16 * 16
    assert 0.01 < min(places) <= max(places) < 0.6


def test_all_blocks_of_a_filled_pool_know_a_text():
    work = Work(make_manager("minipaged:sha256", 1001), 1001, "0/0")
    work.fill()
    blocks = work.manager.blocks
    assert len(blocks.block_of) == blocks.num_free_blocks == 1001


def test_pools_take_turns_operation_by_operation():
    log = []

    class Played:
        def __init__(self, pool):
            self.pool = pool

        def open(self, request_id, token_ids):
            return request_id

        def adopt(self, seq):
            log.append((self.pool, seq))
            return 0

        def grow(self, seq, token_id): ...

        def release(self, seq): ...

        def num_free_blocks(self):
            return POOL

    allocator_work.measure([Work(Played(pool), POOL, "0/0") for pool in "ab"])
    assert log[:4] == [("a", "new 0"), ("b", "new 0"), ("a", "new 1"), ("b", "new 1")]
    assert log[-1] == ("b", "fill 38 again")


def test_a_lost_block_is_no_result():
    work = Work(make_manager("minipaged:plain", POOL), POOL, "0/0")
    work.manager.blocks.pool.allocate()
    with pytest.raises(RuntimeError, match="999 of 1000 blocks are free when everybody has left"):
        work.result()


def converse(name, *lines):
    said = []
    serve(name, io.StringIO("".join(json.dumps(line) + "\n" for line in lines)), said.append)
    return said


def test_a_worker_fills_and_then_waits_for_the_word():
    loaded, filled, answer = converse("minipaged:plain", {"pools": [POOL], "seed": "0/0"}, {"event": "go"})
    assert loaded["loaded"]["class"] == "BlockManager"
    assert filled == {"event": "filled"}
    assert [part["num_blocks"] for part in answer["measured"]] == [POOL]


def test_an_interpreter_without_vllm_is_named_by_what_it_lacks(capsys):
    [said] = converse("vllm:sha256")
    assert said == {"error": "ModuleNotFoundError: No module named 'vllm'"}


class PlayedProcess:
    """A manager that needs 1,000 nanoseconds for everything; vLLM's twice that. `log` is everybody's."""

    log: list[str]

    def __init__(self, name, interpreter):
        self.name, self.settings = name, {"version": "1", "python": interpreter}
        self.cost = 2000 if name.startswith("vllm") else 1000
        self.closed = False

    def awake(self):
        return nullcontext()

    def send(self, message):
        self.log.append(f"{self.name} {'go' if message == {'event': 'go'} else message['seed']}")
        self.pools = message.get("pools", getattr(self, "pools", None))

    def expect(self, event):
        assert event == "filled"

    def receive(self, key):
        assert key == "measured"
        samples = {name: [self.cost] * 3 for name in OPERATIONS}
        return [{"num_blocks": n, "samples": samples, "fill_ns": n, "longest_ns": n} | self.find() for n in self.pools]

    def find(self):
        return {"num_known": [0, 0 if self.name.endswith("plain") else 256]}

    def close(self):
        self.closed = True


def compare(*names, start=PlayedProcess, **changes):
    PlayedProcess.log = []
    options = {"pools": [1000, 2000], "repetitions": 2, "start": start}
    return Comparison(dict.fromkeys(names, "3.11"), **{**options, **changes})


def test_all_fill_before_anybody_is_measured():
    comparison = compare("minipaged:sha256", "vllm:sha256")
    comparison.run()
    ours, theirs = "minipaged:sha256", "vllm:sha256"
    for i in range(2):
        part = PlayedProcess.log[4 * i : 4 * i + 4]
        assert part == [f"{ours} 0/{i}", f"{theirs} 0/{i}", f"{ours} go", f"{theirs} go"]
    order = [(r["repetition"], r["manager"], r["num_blocks"]) for r in comparison.records]
    assert order == [(i, name, n) for i in range(2) for name in (ours, theirs) for n in (1000, 2000)]
    assert comparison.records[0]["ns_per_block"]["release"] == pytest.approx(1000 / 21)
    assert all(process.closed for process in comparison.processes.values())


def test_a_manager_that_finds_other_tokens_ends_the_run():
    class Forgetful(PlayedProcess):
        def find(self):
            return {"num_known": [0, 240]} if self.name == "vllm:sha256" else super().find()

    comparison = compare("minipaged:sha256", "minipaged:plain", "vllm:sha256", start=Forgetful)
    message = "pool of 1000, admission 1: vllm:sha256 found 240 cached tokens, minipaged:sha256 256"
    with pytest.raises(RuntimeError, match=message):
        comparison.run()
    assert all(process.closed for process in comparison.processes.values())


def test_an_interrupted_run_keeps_whole_repetitions():
    class Interrupted(PlayedProcess):
        def expect(self, event):
            if len(self.log) == 3:
                raise KeyboardInterrupt

    comparison = compare("minipaged:plain", start=Interrupted)
    comparison.run()
    assert comparison.interrupted
    assert [record["repetition"] for record in comparison.records] == [0, 0]


def show(document):
    console = Console(file=io.StringIO(), width=120)
    print_report(console, document)
    return console.file.getvalue()


def test_the_tables_are_drawn_from_the_document_alone():
    comparison = compare("minipaged:sha256", "minipaged:plain", "vllm:sha256", "vllm:plain")
    comparison.run()
    text = show(json.loads(json.dumps(comparison.document())))
    rows = [line.split() for line in text.splitlines()]
    assert ["vllm:sha256", "0.10", "(0.10-0.10)", "0.10", "(0.10-0.10)", "1.00"] in rows  # 2,000 ns, 21 blocks
    assert ["×", "ours", "2.00", "2.00"] in rows
    assert "minipaged 1 on Python 3.11, vllm 1 on Python 3.11" in text


@pytest.fixture(scope="module")
def document(tmp_path_factory):
    """Of one real run, with real processes."""
    out = tmp_path_factory.mktemp("allocator") / "found" / "result.json"
    assert allocator.main(["--pools", str(POOL), "--repetitions", "1", "--out", str(out)]) == 0
    return json.loads(out.read_text())


def test_without_vllm_ours_is_measured_and_the_table_says_so(document):
    facts = {"created", "command", "machine", "versions", "commit", "dirty"}
    assert set(document) == facts | {"seed", "interrupted", "pools", "managers", "operations", "repetitions"}
    assert [(r["manager"], r["num_cached_tokens"]) for r in document["repetitions"]] == [
        ("minipaged:sha256", 16 * 256),
        ("minipaged:plain", 0),
    ]
    assert "vLLM was not measured, for want of --vllm-python" in show(document)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--pools", "999"], "--pools 999: a number of blocks, 1000 or more"),
        (["--pools", "1e6"], "--pools 1e6"),
        (["--pools", "2000,1000"], "the smallest first"),
        (["--repetitions", "0"], "--repetitions"),
        (["--vllm-python", "/nowhere/python"], "--vllm-python /nowhere/python is no interpreter"),
        (["--out", "{tmp}"], "cannot be written"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(tmp_path, capsys, monkeypatch, argv, message):
    monkeypatch.delenv("MINIPAGED_VLLM_PYTHON", raising=False)
    assert allocator.main([word.replace("{tmp}", str(tmp_path)) for word in argv]) == 2
    [error] = capsys.readouterr().err.splitlines()
    assert message in error
    assert error.startswith("python -m benchmarks.allocator: error: ")


def test_vllm_s_interpreter_may_be_named_by_the_environment(monkeypatch):
    monkeypatch.setenv("MINIPAGED_VLLM_PYTHON", sys.executable)
    names = allocator.make_comparison(allocator.make_parser().parse_args([])).interpreters
    assert list(names) == ["minipaged:sha256", "minipaged:plain", "vllm:sha256", "vllm:sha256_cbor", "vllm:plain"]


class PlayedKVCacheManager:
    """Of vLLM 0.32.0, the calls: their names, their arguments, what they return."""

    known, room = 0, True

    def __init__(self, config, max_model_len, scheduler_block_size, hash_block_size, enable_caching):
        self.config, self.caching, self.calls = config, enable_caching, []
        self.block_pool = SimpleNamespace(get_num_free_blocks=lambda: config.num_blocks - 1)

    def get_computed_blocks(self, request):
        return "blocks", self.known, 0

    def allocate_slots(
        self,
        request,
        num_new_tokens,
        num_new_computed_tokens=0,
        new_computed_blocks=None,
        *,
        full_sequence_must_fit=False,
    ):
        self.calls.append((num_new_tokens, num_new_computed_tokens, new_computed_blocks, full_sequence_must_fit))
        return "new blocks" if self.room else None

    def free(self, request):
        self.calls.append("free")


class PlayedRequest:
    def __init__(self, request_id, prompt_token_ids, sampling_params, pooling_params, block_hasher=None):
        self.request_id, self.tokens, self._block_hasher = request_id, list(prompt_token_ids), block_hasher
        self.num_computed_tokens, self.block_hashes = 0, []
        self.update_block_hashes()

    @property
    def num_tokens(self):
        return len(self.tokens)

    def append_output_token_ids(self, token_id):
        self.tokens.append(token_id)
        self.update_block_hashes()

    def update_block_hashes(self):
        if self._block_hasher is not None:
            self.block_hashes.extend(self._block_hasher(self))


@pytest.fixture
def vllm(monkeypatch):
    """The adapter, on a vLLM that only writes down what it is told."""
    names = {
        "vllm": {},
        "vllm.sampling_params": {"SamplingParams": SimpleNamespace},
        "vllm.utils.hashing": {"get_hash_fn_by_name": lambda name: name},
        "vllm.v1.core.kv_cache_manager": {"KVCacheManager": PlayedKVCacheManager},
        "vllm.v1.core.kv_cache_utils": {
            "init_none_hash": lambda function: None,
            "get_request_block_hasher": lambda size, function: lambda request: [f"{function} of {request.num_tokens}"],
        },
        "vllm.v1.kv_cache_interface": dict.fromkeys(
            ("FullAttentionSpec", "KVCacheConfig", "KVCacheGroupSpec"), SimpleNamespace
        ),
        "vllm.v1.request": {"Request": PlayedRequest},
    }
    for name, contents in names.items():
        module = ModuleType(name)
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "benchmarks.managers.vllm_manager", raising=False)
    yield importlib.import_module("benchmarks.managers.vllm_manager")
    sys.modules.pop("benchmarks.managers.vllm_manager", None)


def test_vllm_is_asked_as_its_scheduler_asks(vllm, monkeypatch):
    monkeypatch.setattr(PlayedKVCacheManager, "known", 32)
    manager = vllm.make("sha256", POOL)
    assert (manager.blocks.config.num_blocks, manager.num_free_blocks()) == (POOL + 1, POOL)
    request = manager.open("a", [7] * 40)
    assert request.block_hashes == [], "naming is timed, so it comes after opening"
    assert manager.adopt(request) == 32
    assert (request.block_hashes, request.num_computed_tokens) == (["sha256 of 40"], 40)
    manager.grow(request, 8)
    assert (request.tokens[-1], request.num_computed_tokens, len(request.block_hashes)) == (8, 41, 2)
    manager.release(request)
    assert manager.blocks.calls == [(8, 32, "blocks", True), (1, 0, None, False), "free"]


def test_plain_vllm_names_nothing(vllm):
    manager = vllm.make("plain", POOL)
    request = manager.open("a", [7] * 40)
    manager.adopt(request)
    assert (manager.blocks.caching, request.block_hashes) == (False, [])


def test_vllm_out_of_room_is_an_error(vllm, monkeypatch):
    monkeypatch.setattr(PlayedKVCacheManager, "room", False)
    manager = vllm.make("sha256", POOL)
    with pytest.raises(RuntimeError, match="no room for request a"):
        manager.adopt(manager.open("a", [7] * 40))
