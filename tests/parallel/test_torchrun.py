"""torchrun starts the processes; the engine in the first of them says what it says in one process."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from torch.distributed import HashStore

from minipaged.config import EngineConfig
from minipaged.parallel import torchrun
from minipaged.parallel.backends import make_executor
from minipaged.parallel.torchrun import choose_host

from ..tiny import greedy_tokens, tiny_model
from .processes import gone, new_mark, with_mark

ROOT = Path(__file__).parents[2]
PROMPTS = [[2, 3, 4], [7, 8]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("tiny"))


def test_without_torchrun_it_is_refused_by_what_is_missing(folder, monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(ValueError, match="torchrun has not started this, RANK is not set"):
        make_executor(EngineConfig(model=str(folder), distributed_executor_backend="torchrun"))


def test_where_all_processes_are_here_nobody_else_is_listened_to(monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    assert choose_host() == "127.0.0.1"


def test_an_engine_that_is_refused_leaves_nobody_waiting(monkeypatch):
    """The others wait for executor 1: that is the next one, or the news that there is none."""
    for name, value in {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "GLOO_SOCKET_IFNAME": "lo"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torchrun, "find_store", lambda: store)
    monkeypatch.setattr(torchrun.atexit, "register", lambda function, *args: last_words.append((function, args)))
    store, last_words = HashStore(), []
    with pytest.raises(ValueError, match="torchrun started 2 processes; the ranks asked for are 4"):
        torchrun.Torchrun().start(4)
    [(function, args)] = last_words
    function(*args)
    assert store.get("executor 1").decode() == torchrun.NO_MORE


def test_a_level_under_torchrun_says_what_transformers_says_and_all_processes_end(folder, tmp_path):
    prompts, out, mark = tmp_path / "prompts.jsonl", tmp_path / "out.json", new_mark()
    lines = [{"prompt_token_ids": prompt, "max_tokens": 6, "ignore_eos": True} for prompt in PROMPTS]
    prompts.write_text("\n".join(map(json.dumps, lines)))
    start = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    level = ["-m", "levels.06_tensor_pipeline_parallel", "--model", str(folder), "--prompts", str(prompts)]
    split = ["--tensor-parallel-size", "2", "--distributed-executor-backend", "torchrun", "--num-blocks", "64"]
    command = [*start, *level, *split, "--json", str(out)]
    done = subprocess.run(command, cwd=ROOT, env=with_mark(mark), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    document = json.loads(out.read_text())
    assert [request["token_ids"] for request in document["requests"]] == greedy_tokens(folder, PROMPTS, 6)
    assert document["config"]["distributed_executor_backend"] == "torchrun"
    assert done.stdout.count("what it cost") == 1, "only the driver speaks"
    assert gone(mark)
