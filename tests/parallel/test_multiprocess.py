"""Whoever is killed, and whenever: an error names the rank within five seconds, and nobody is left behind.

    rank    while loading, idle, in the middle of a step           ->  the driver says which one, and how it went
    driver  Ctrl-C: the run ends, the engine can be used again     SIGKILL: its ranks notice, and leave

`python -m benchmarks.endurance` does the same many times, at moments that chance chooses."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from minipaged.config import EngineConfig
from minipaged.engine import Engine
from minipaged.parallel.backends import make_executor
from minipaged.parallel.crew import RankError
from minipaged.parallel.multiprocess import Processes
from minipaged.sampling_params import SamplingParams

from ..tiny import tiny_model
from .processes import NAME, gone, new_mark, survivors, with_mark

ROOT = Path(__file__).parents[2]
AT_MOST_S = 5.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def mark(monkeypatch):
    """All children of the test bear it, and none is left at its end."""
    monkeypatch.setenv(NAME, mark := new_mark())
    yield mark
    assert gone(mark), survivors(mark)


def config(folder, **fields):
    return EngineConfig(model=str(folder), num_blocks=64, block_size=4, max_model_len=64, **fields)


def kill(process, how=signal.SIGKILL):
    process.send_signal(how)
    return time.monotonic()


def step_on(engine):
    while engine.has_unfinished_requests():
        engine.step()


def test_a_rank_that_is_killed_while_loading_is_named(folder, mark, monkeypatch):
    killed_at, start = [], Processes.start

    def start_and_kill(processes, num_ranks):
        lines = start(processes, num_ranks)
        killed_at.append(kill(processes.processes[1]))
        return lines

    monkeypatch.setattr(Processes, "start", start_and_kill)
    with pytest.raises(RankError, match="rank 1 died: killed by SIGKILL"):
        make_executor(config(folder, tensor_parallel_size=2))
    assert time.monotonic() - killed_at[0] < AT_MOST_S
    assert survivors(mark) == []


def test_a_rank_that_is_killed_while_idle_ends_the_others_at_once(folder, mark):
    engine = Engine(config(folder, pipeline_parallel_size=2))
    engine.add_request([2, 3, 4], SamplingParams(max_tokens=4))
    step_on(engine)
    assert len(survivors(mark)) == 2
    kill(engine.executor.crew.launcher.processes[0], signal.SIGTERM)
    assert gone(mark, AT_MOST_S), "nobody had to ask"
    engine.add_request([2, 3, 4], SamplingParams(max_tokens=4))
    for _ in range(2):
        with pytest.raises(RankError, match="rank 0 died: killed by SIGTERM"):
            step_on(engine)
        engine.check_integrity()
    engine.shutdown()


def test_a_rank_that_is_killed_in_the_middle_of_a_step_is_named_and_not_who_waited_for_it(folder, mark):
    engine = Engine(config(folder, tensor_parallel_size=2))
    victim = engine.executor.crew.launcher.processes[1]
    victim.send_signal(signal.SIGSTOP)  # rank 0 goes ahead, and waits for it
    killed_at = []
    killer = threading.Timer(0.3, lambda: killed_at.append(kill(victim)))
    killer.start()
    engine.add_request([2, 3, 4], SamplingParams(max_tokens=4), "0")
    with pytest.raises(RankError, match="rank 1 died: killed by SIGKILL"):
        engine.step()
    assert time.monotonic() - killed_at[0] < AT_MOST_S
    assert survivors(mark) == []
    engine.abort("0")
    engine.check_integrity()
    assert not engine.has_unfinished_requests()


def test_what_a_rank_cannot_load_is_one_line_with_its_number(tmp_path, folder, mark):
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes()[: 2000 if file.suffix == ".safetensors" else None])
    with pytest.raises(ValueError, match=r"^rank 0: .*model.safetensors is damaged.*") as refusal:
        make_executor(config(tmp_path, distributed_executor_backend="mp"))
    assert "\n" not in str(refusal.value)
    assert survivors(mark) == []


DRIVER = """
import sys
from minipaged import LLM, SamplingParams

llm = LLM(sys.argv[1], tensor_parallel_size=2, num_blocks=600, block_size=4, max_model_len=2048)
params = SamplingParams(temperature=0, max_tokens=2000, ignore_eos=True)

def say(run, outputs):
    if run.num_steps == 5:
        print("running", flush=True)

try:
    llm.generate([[2, 3, 4]], params, on_step=say)
except KeyboardInterrupt:
    [output] = llm.generate([[2, 3, 4]], SamplingParams(max_tokens=3, ignore_eos=True))
    print("interrupted", len(output.outputs[0].token_ids), flush=True)
llm.generate([[2, 3, 4]], params, on_step=say)
"""


def test_ctrl_c_ends_the_run_and_not_the_ranks_and_they_do_not_outlive_their_driver(folder):
    mark, pipe = new_mark(), subprocess.PIPE
    command = [sys.executable, "-c", DRIVER, str(folder)]
    with subprocess.Popen(command, env=with_mark(mark), cwd=ROOT, stdout=pipe, text=True) as driver:
        assert driver.stdout.readline() == "running\n"
        kill(driver, signal.SIGINT)
        assert driver.stdout.readline() == "interrupted 3\n"
        assert driver.stdout.readline() == "running\n"
        assert len(survivors(mark)) == 3
        kill(driver)
    assert gone(mark, AT_MOST_S), survivors(mark)


def test_one_process_may_be_a_rank_too(folder, mark):
    """An engine cannot tell the executors apart."""
    outputs = []
    for backend in ("uniproc", "mp"):
        engine = Engine(config(folder, distributed_executor_backend=backend))
        engine.add_request([2, 3, 4], SamplingParams(temperature=0, max_tokens=6, ignore_eos=True))
        while engine.has_unfinished_requests():
            output = engine.step()
        outputs.append(output[0].outputs[0].token_ids)
        assert engine.model.forward_s > 0
        engine.shutdown()
        engine.shutdown()
        assert survivors(mark) == []
    assert outputs[0] == outputs[1]


def test_what_needs_no_rank_to_be_refused_starts_none(folder, mark, monkeypatch):
    monkeypatch.setattr(Processes, "start", lambda processes, num_ranks: 1 // 0)
    with pytest.raises(ValueError, match=r"^enable_expert_parallel spreads experts, and .* has none$"):
        make_executor(config(folder, tensor_parallel_size=2, enable_expert_parallel=True))


def test_ranks_leave_room_for_a_draft_model_that_the_driver_has(folder, mark):
    guessing = {"draft_model": str(folder), "speculative_method": "draft_model", "num_speculative_tokens": 2}
    sizes = {"block_size": 4, "max_model_len": 64, "max_num_seqs": 64, "rank_memory_gb": 0.0006}
    here, there = (
        make_executor(EngineConfig(model=str(folder), **sizes, **guessing, distributed_executor_backend=backend))
        for backend in ("uniproc", "mp")
    )
    there.shutdown()
    assert here.config.num_blocks == there.config.num_blocks < 64 * 16, "less than the requests could use"


def test_an_engine_that_nobody_knows_any_more_leaves_nothing(folder, mark):
    engine = Engine(config(folder, distributed_executor_backend="mp"))
    assert len(survivors(mark)) == 1
    del engine
    assert survivors(mark) == []
    assert os.environ[NAME] == mark
