"""The protocol between harness and engine, from the engine's side and then through real processes."""

import io
import json
import subprocess
import sys

import pytest

from benchmarks.peers import Answer
from benchmarks.process import ROOT, EngineProcess, wake_up_call
from benchmarks.worker import serve
from benchmarks.workloads import Request
from tests.tiny import greedy_tokens, tiny_model


class Echo:
    def describe(self):
        return {"kind": "echo"}

    def run(self, requests, on_first):
        on_first()
        return Answer([request.prompt_token_ids[: request.max_tokens] for request in requests], 0.5)


def converse(load, *lines):
    said = []
    serve(load, io.StringIO("".join(json.dumps(line) + "\n" for line in lines)), said.append)
    return said


def test_a_job_is_parsed_before_the_clock_starts_and_answered_after_it_stopped():
    said = converse(Echo, {"requests": [[[5, 6, 7], 2]]}, {"event": "go"})
    assert said[:4] == [{"loaded": {"kind": "echo"}}, *({"event": e} for e in ("ready", "first", "done"))]
    assert said[4]["answer"] == [[5, 6]]
    assert said[4]["model_s"] == 0.5
    assert said[4]["peak_memory_mb"] > 0


def test_a_harness_that_goes_away_ends_the_worker():
    assert converse(Echo, {"requests": []}) == [{"loaded": {"kind": "echo"}}, {"event": "ready"}]


def test_an_engine_that_cannot_load_says_why_in_one_line(capsys):
    def load():
        raise ValueError("no such\nmodel")

    assert converse(load) == [{"error": "ValueError: no such model"}]
    assert "no such" in capsys.readouterr().err


def test_whoever_wakes_up_learns_nothing_of_what_is_asked_next():
    requests = [Request([7] * 512 + list(range(100, 120)), 32), Request([5], 1)]
    assert wake_up_call(requests) == [Request(list(range(119, 103, -1)), 1), Request([5], 1)]


def test_an_engine_in_its_own_process_gives_the_same_tokens_and_an_error_names_it(tmp_path):
    folder = tiny_model(tmp_path, vocab_size=256)
    process = EngineProcess("minipaged:3", folder, num_threads=1)
    try:
        sample = process.measure([Request([101, 102, 103], 5), Request([104], 2)])
        assert sample.token_ids[0] == greedy_tokens(folder, [[101, 102, 103]], 5)[0]
        assert 0 < sample.ttft_s <= sample.wall_s
        assert 0 < sample.model_s < sample.wall_s
        with pytest.raises(RuntimeError, match="minipaged:3: ValueError: the prompt is empty"):
            process.measure([Request([], 1)])
    finally:
        process.close()


def test_less_work_than_asked_for_is_no_result():
    class Lazy(EngineProcess):
        def __init__(self):
            self.name = "lazy"

    with pytest.raises(RuntimeError, match="lazy gave 1 tokens to request 0, not 2"):
        Lazy().check([[1]], [Request([1], 2)])
    with pytest.raises(RuntimeError, match="lazy answered 0 of 1"):
        Lazy().check([], [Request([1], 2)])


@pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux's")
def test_a_worker_does_not_outlive_its_harness():
    worker = "import time; from benchmarks.worker import *; die_with_parent(); print(flush=True); time.sleep(60)"
    harness = (
        "import os, subprocess, sys\n"
        f"child = subprocess.Popen([sys.executable, '-c', {worker!r}], stdout=subprocess.PIPE)\n"
        "child.stdout.readline()\n"
        "os.kill(os.getpid(), 9)\n"
    )
    # the worker holds stderr open: this returns when the last of the two is gone
    done = subprocess.run([sys.executable, "-c", harness], cwd=ROOT, stderr=subprocess.PIPE, timeout=50, check=False)
    assert (done.returncode, done.stderr) == (-9, b"")
