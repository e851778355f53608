"""The command for a GPU runs from end to end without one, says so, and survives a part that fails."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import gpu, gpu_tests
from benchmarks.gpu import Outcome, Part, carry_out, summarize
from benchmarks.gpu_ladder import attempt
from benchmarks.gpu_shapes import SHAPES, make_folder
from minipaged.models.config import read_model_config

ROOT = Path(__file__).parent.parent.parent


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
