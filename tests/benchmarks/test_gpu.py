"""The command for a GPU runs from end to end without one, says so, and survives a part that fails."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil
import pytest
import torch

from benchmarks import gpu, gpu_tests
from benchmarks.gpu import Outcome, Part, carry_out, summarize
from benchmarks.gpu_ladder import attempt
from benchmarks.gpu_shapes import SHAPES, make_folder
from minipaged.models.config import read_model_config

ROOT = Path(__file__).parent.parent.parent
INTERRUPTED_RUN = """
import sys
from pathlib import Path
from benchmarks import gpu
out = Path(sys.argv[1])
deaf = f"signal.signal(signal.SIGINT, lambda *_: open({str(out / 'asked')!r}, 'w')); pid = os.getpid()"
hang = "import os, signal, subprocess, time\\n"
hang += deaf if "deaf" in sys.argv else "pid = subprocess.Popen(['sleep', '60']).pid"
hang += f"\\nwith open({str(out / 'half')!r}, 'w') as f: f.write(str(pid))\\n"
hang += f"os.rename({str(out / 'half')!r}, {str(out / 'started')!r}); time.sleep(60)"
gpu.find_card = lambda dry: ("a card", "sm_90")
gpu.plan = lambda *args: [gpu.Part("tests", ["-c", ""], 60, out / "a"), gpu.Part("step", ["-c", hang], 60, out / "b")]
sys.exit(gpu.main(["--out", str(out), "--dry-run"]))
"""


def test_a_dry_run_of_steps_and_ladder_leaves_a_document_and_a_table(tmp_path):
    """The kernels have a test of their own (test_kernels.py), and so has what is compiled."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.gpu",
        "--dry-run",
        "--out",
        str(tmp_path),
        "--only",
        "tests,step,ladder",
    ]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    logs = {path.name: path.read_text()[-2000:] for path in tmp_path.glob("*.log")}
    assert result.returncode == 0, (result.stdout, result.stderr, logs)
    document = json.loads((tmp_path / "gpu.json").read_text())
    assert "no claim about any GPU" in document["device"]
    parts = {name: part["document"] for name, part in document["parts"].items()}
    assert list(parts) == ["tests", "step", "ladder"]
    assert parts["tests"]["tests"] > 5
    assert parts["tests"]["failed"] == []
    found = {(f["way"], f["kept"], f["num_seqs"]) for f in parts["step"]["figures"]}
    assert found == {
        (way, kept, num_seqs)
        for num_seqs in (1, 3)
        for way, kept in (("launched", "auto"), ("recorded", "auto"), ("recorded", "int8"))
    }
    assert all(f["floor_ms"] > 0 and f["device_ms"] > 0 for f in parts["step"]["figures"])
    engines = parts["ladder"]["tiny"]
    assert [engine["error"] for engine in engines] == [None] * 10
    assert [engine["engine"][:2] for engine in engines[:8]] == [f"{i:02}" for i in range(1, 9)]
    assert len({engine["output_tokens"] for engine in engines[:8]}) == 1
    assert result.stdout.count("output tokens/s") == 10


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_it_says_what_needs_none(tmp_path, capsys):
    with pytest.raises(SystemExit):
        gpu.main(["--out", str(tmp_path / "new")])
    assert "there is no GPU here (--dry-run needs none)" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_an_unknown_part_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit):
        gpu.main(["--out", str(tmp_path), "--dry-run", "--only", "step,speed"])
    assert "--only speed: there are tests, compiled" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("code", "limit_s", "error"),
    [("import sys; sys.exit(3)", 30, "exit code 3"), ("import time; time.sleep(60)", 0.5, "not done after 0 s")],
)
def test_a_part_that_fails_or_hangs_is_said_so_with_what_it_wrote(tmp_path, code, limit_s, error):
    path = tmp_path / "step.json"
    write = f"open({str(path)!r}, 'w').write('{{\"figures\": []}}')"
    part = Part("step", ["-c", f"{write}; print('words'); {code}"], limit_s, path)
    outcome = carry_out(part, tmp_path, dry=True)
    assert error in outcome.error
    assert outcome.document == {"figures": []}
    lines = list(summarize([outcome, Outcome("ladder", 1.0, "exit code 1, see ladder.log", None)]))
    assert [line.split()[0] for line in lines] == ["step", "ladder"]


@pytest.mark.parametrize("left", ["", "open(path, 'w').write('[1, 2')"])
def test_neither_an_earlier_runs_document_nor_half_of_one_is_told(tmp_path, left):
    path = tmp_path / "step.json"
    path.write_text('{"figures": ["of yesterday"]}')
    outcome = carry_out(Part("step", ["-c", f"path = {str(path)!r}; {left}"], 30, path), tmp_path, dry=True)
    assert (outcome.error, outcome.document) == (None, None)


@pytest.mark.parametrize("moments", [["started"], ["started", "asked"]], ids=["once", "twice"])
def test_ctrl_c_ends_a_part_with_all_it_started_and_leaves_what_there_is(tmp_path, moments):
    """A second one ends a part that does not listen to the first."""
    command = [sys.executable, "-c", INTERRUPTED_RUN, str(tmp_path), "deaf" if "asked" in moments else ""]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        for name in moments:
            wait_until((tmp_path / name).exists)
            process.send_signal(signal.SIGINT)
        shown, complaint = process.communicate(timeout=60)
    ended(int((tmp_path / "started").read_text()))
    assert (process.returncode, complaint) == (130, "")
    assert [line.split("  ")[-1] for line in shown.splitlines()[-2:]] == ["done", "interrupted"]
    parts = json.loads((tmp_path / "gpu.json").read_text())["parts"]
    assert [part["error"] for part in parts.values()] == [None, "interrupted"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_time_limit_and_a_lost_terminal_are_ctrl_c(tmp_path, number):
    command = [sys.executable, "-m", "benchmarks.gpu", "--dry-run", "--only", "step", "--out", str(tmp_path)]
    heard = partial(signal.signal, number, signal.SIG_DFL)  # what started the tests may have ignored it, as nohup does
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, preexec_fn=heard) as process:
        wait_until(lambda: find_parts(process.pid, "benchmarks.gpu_step"))
        [part] = find_parts(process.pid, "benchmarks.gpu_step")
        process.send_signal(number)
        shown, _ = process.communicate(timeout=60)
    ended(part.pid)
    assert process.returncode == 130
    told = [line for line in shown.splitlines() if line.endswith("interrupted")]
    assert len(told) == 1, "its figures may follow, if it had any by then"
    assert json.loads((tmp_path / "gpu.json").read_text())["parts"]["step"]["error"] == "interrupted"


def find_parts(pid, module):
    return [child for child in psutil.Process(pid).children() if module in child.cmdline()]


def ended(pid):
    try:
        wait_until(lambda: not runs(pid), seconds=10)
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def wait_until(true, seconds=60):
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def runs(pid):
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


@pytest.mark.parametrize(
    ("capability", "target"), [((8, 0), "sm_80"), ((8, 9), "sm_80"), ((9, 0), "sm_90"), ((12, 0), "sm_100")]
)
def test_kernels_are_compiled_for_the_nearest_target_that_is_not_newer_than_the_card(monkeypatch, capability, target):
    facts = {"is_available": True, "get_device_name": "a card", "get_device_capability": capability}
    for name, fact in facts.items():
        monkeypatch.setattr(torch.cuda, name, lambda fact=fact: fact)
    monkeypatch.setattr(torch.version, "hip", None)
    assert gpu.find_card(dry=False) == ("a card", target)


def test_failed_and_unfinished_tests_are_named(tmp_path):
    path = tmp_path / "tests.xml"
    path.write_text(
        '<testsuites><testsuite tests="3" failures="1" errors="0" skipped="1"><testcase classname="a" name="b">'
        '<failure/></testcase><testcase classname="a" name="c"/></testsuite></testsuites>'
    )
    done = {"file": "x.py", "unfinished": False, **gpu_tests.read_report(path)}
    lines = list(gpu.tell_tests(gpu_tests.add_up([done, {"file": "y.py", "unfinished": True, "failed": []}])))
    assert lines == ["3 tests, 1 failed, 1 skipped", "a.b", "not done in time: y.py"]


def test_a_file_of_tests_that_hangs_is_ended(tmp_path):
    path = tmp_path / "test_slow.py"
    path.write_text("import time\n\n\ndef test_slow():\n    time.sleep(60)\n")
    assert gpu_tests.run_file(str(path), tmp_path, end=0) == {"file": str(path), "unfinished": True, "failed": []}


def test_every_file_of_kernel_tests_is_among_those_that_a_card_runs():
    files = gpu_tests.find_files(dry=False)
    assert {path.name for path in (ROOT / "tests/kernels").glob("test_*.py")} <= {Path(name).name for name in files}
    assert all((ROOT / name).exists() for name in files)


def test_a_kernel_that_spills_is_named():
    rows = [{"kernel": "k", "shape": "s", "target": "sm_90", "stack": stack} for stack in (0, 8)]
    assert list(gpu.tell_compiled(rows)) == ["2 kernels compiled for sm_90, 1 need a stack", "k (s)"]


def test_an_engine_that_fails_is_a_figure_without_a_rate():
    def fail():
        raise RuntimeError("out of memory")

    assert attempt("x", fail) == {"engine": "x", "output_tokens_per_s": None, "error": "RuntimeError: out of memory"}


def test_the_shapes_are_models_that_can_be_built(tmp_path):
    for name in SHAPES:
        config = read_model_config(make_folder(name, tmp_path))
        assert config.hidden_size == SHAPES[name]["hidden_size"]
