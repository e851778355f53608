"""torchrun starts the processes; the engine in the first of them says what it says in one process."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from torch.distributed import HashStore

from minipaged.config import EngineConfig
from minipaged.parallel import torchrun
from minipaged.parallel.backends import make_executor
from minipaged.parallel.torchrun import choose_host

from ..tiny import greedy_tokens, tiny_model
from .hosts import reason_not_to, two_hosts
from .processes import gone, new_mark, survivors, with_mark

ROOT = Path(__file__).parents[2]
PROMPTS = [[2, 3, 4], [7, 8]]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]


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


def level_06(folder, tmp_path, max_tokens, *torchrun_flags):
    """The command, and where its result will be."""
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "out.json"
    lines = [{"prompt_token_ids": prompt, "max_tokens": max_tokens, "ignore_eos": True} for prompt in PROMPTS]
    prompts.write_text("\n".join(map(json.dumps, lines)))
    level = ["-m", "levels.06_tensor_pipeline_parallel", "--model", str(folder), "--prompts", str(prompts)]
    split = ["--tensor-parallel-size", "2", "--distributed-executor-backend", "torchrun", "--num-blocks", "1024"]
    return [*TORCHRUN, *torchrun_flags, *level, *split, "--json", str(out)], out


NO_HOSTS = reason_not_to()


@pytest.mark.skipif(NO_HOSTS is None, reason="there can be two hosts here, and they are asked the same")
def test_a_level_under_torchrun_says_what_transformers_says_and_all_processes_end(folder, tmp_path):
    mark = new_mark()
    command, out = level_06(folder, tmp_path, 6, "--nproc-per-node", "2")
    done = subprocess.run(command, cwd=ROOT, env=with_mark(mark), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    document = json.loads(out.read_text())
    assert [request["token_ids"] for request in document["requests"]] == greedy_tokens(folder, PROMPTS, 6)
    assert document["config"]["distributed_executor_backend"] == "torchrun"
    assert done.stdout.count("what it cost") == 1, "only the driver speaks"
    assert gone(mark)


SCRIPT = """
import sys
from minipaged import LLM, SamplingParams
from minipaged.cli import guarded

def say(run, outputs):
    if run.num_steps == 5:
        print("running", flush=True)

def work():
    split = {"tensor_parallel_size": 2, "distributed_executor_backend": "torchrun"}
    llm = LLM(sys.argv[1], num_blocks=600, block_size=4, max_model_len=2048, **split)
    said = llm.generate([[2, 3, 4], [7, 8]], SamplingParams(temperature=0, max_tokens=6, ignore_eos=True))
    print([output.outputs[0].token_ids for output in said], flush=True)
    llm.generate([[2, 3, 4]], SamplingParams(max_tokens=2000, ignore_eos=True), on_step=say)

sys.exit(guarded("prog", False, work))
"""


def test_a_process_of_torchruns_that_is_killed_is_named_before_torchrun_ends_the_others(folder, tmp_path):
    (script := tmp_path / "script.py").write_text(SCRIPT)
    mark, pipe = new_mark(), subprocess.PIPE
    command = [*TORCHRUN, "--nproc-per-node", "2", str(script), str(folder)]
    environment = {**with_mark(mark), "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True) as run:
        assert json.loads(run.stdout.readline()) == greedy_tokens(folder, PROMPTS, 6)
        assert run.stdout.readline() == "running\n"
        [pid] = [pid for pid in survivors(mark) if b"RANK=1" in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")]
        os.kill(pid, signal.SIGKILL)
        killed_at = time.monotonic()
        lines = iter(run.stderr.readline, "")
        reason = next(line for line in lines if line.startswith("prog:"))
        # rank 0 may have been heard before, and is quoted then
        assert reason.startswith("prog: error: rank 1 died: its line is closed")
        assert time.monotonic() - killed_at < 5
        run.stderr.read()
    assert run.returncode == 1
    assert gone(mark)


@pytest.mark.skipif(NO_HOSTS is not None, reason=str(NO_HOSTS))
def test_two_hosts_say_what_one_says(folder, tmp_path):
    """Each sees its own loopback and one end of a cable; torchrun lets them meet at the other's address."""
    mark, runs = new_mark(), []
    with two_hosts() as hosts:
        meeting = ["--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d"]
        for host in hosts:
            is_first = ["--rdzv-conf", f"is_host={int(host is hosts[0])}"]  # where names say so, torchrun knows
            there = ["--rdzv-endpoint", f"{hosts[0].address}:29411", *is_first, "--local-addr", host.address]
            command, out = level_06(folder, tmp_path, 6, *meeting, *there)
            runs.append(host.run(command, with_mark(mark), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
        try:
            words = [run.communicate(timeout=120)[0] for run in runs]
        finally:
            for run in runs:
                run.kill()  # nobody's, once it has ended
    assert [run.returncode for run in runs] == [0, 0], words
    requests = json.loads(out.read_text())["requests"]
    assert [request["token_ids"] for request in requests] == greedy_tokens(folder, PROMPTS, 6)
    assert sum("what it cost" in said for said in words) == 1, "only the driver speaks"
    assert gone(mark)
