"""Environments that are there or not, documents that come in pieces, tables that say what is missed."""

import io
import json
import subprocess
import sys

import pytest
from rich.console import Console

from benchmarks.peers import __main__ as commands
from benchmarks.peers import environments, is_batched, suits
from benchmarks.peers.__main__ import main, make_parser, make_plan
from benchmarks.peers.environments import Environment, find_interpreter, install
from benchmarks.peers.merge import merge, next_repetition
from benchmarks.peers.table import print_tables, verdict_of
from benchmarks.peers.targets import TARGETS, Outcome, find_outcomes
from benchmarks.process import ROOT
from tests.tiny_gguf import tiny_gguf

FIGURES = [{"key": "output_tokens_per_s", "label": "output tokens/s", "less_is_better": False}]


def record(engine, repetition, rate, workload="W2", own_cost=None):
    keys = {"ttft_s": 0.5, "prompt_tokens_per_s": rate, "decode_tokens_per_s": None, "wall_s": 2.0, "subset": None}
    keys |= {"agreement": None, "own_cost": own_cost, "output_tokens_per_s": rate}
    return {"workload": workload, "engine": engine, "repetition": repetition, **keys}


def document(records, **changes):
    facts = {"created": "2026-01-01", "command": "x", "machine": {}, "versions": {}, "commit": "c", "dirty": False}
    facts |= {"limits": {}, "interrupted": False, "model": "m", "scale": 1.0, "seed": 0, "threads": 2}
    described = {"W2": {"what": "64 requests", "figures": FIGURES, "floors": {"output_tokens_per_s": 263.0}}}
    engines = {r["engine"]: {"settings": {}} for r in records}
    return {**facts, "engines": engines, "workloads": described, "repetitions": records, **changes}


def test_an_environment_is_used_only_when_its_install_came_to_its_end(tmp_path, monkeypatch):
    monkeypatch.setenv("MINIPAGED_PEERS", str(tmp_path))
    monkeypatch.setattr(environments, "MAKE", ("-m", "venv", "--without-pip"))  # which takes seconds
    monkeypatch.setitem(environments.ENVIRONMENTS, "vllm", Environment(packages=("nothing",)))
    monkeypatch.setattr(environments, "pip", lambda *arguments: (_ for _ in ()).throw(RuntimeError("no network")))
    said = []
    with pytest.raises(RuntimeError, match="no network"):
        install("vllm", said.append)
    with pytest.raises(ValueError, match="python -m benchmarks.peers install vllm".replace(".", r"\.")):
        find_interpreter("vllm")
    monkeypatch.setattr(environments, "pip", lambda *arguments: None)
    install("vllm", said.append)
    python = find_interpreter("vllm")
    assert subprocess.run([python, "-c", "print(6 * 7)"], capture_output=True, text=True, check=True).stdout == "42\n"
    install("vllm", said.append)
    assert said[-1] == f"vllm: already in {tmp_path / 'vllm'}"
    assert find_interpreter("transformers") == find_interpreter("minipaged") == sys.executable


def test_who_compiles_is_told_what_to_leave_out_and_who_fails_is_named(capfd):
    script = "import os; print(os.environ['CMAKE_ARGS'])"
    environments.run([sys.executable, "-c", script], environments.ENVIRONMENTS["llamacpp"].variables)
    assert capfd.readouterr().out == "-DLLAVA_BUILD=OFF\n"
    with pytest.raises(RuntimeError, match="failed with exit code 3"):
        environments.run([sys.executable, "-c", "raise SystemExit(3)"])


def test_requirements_that_are_no_use_are_left_out():
    wanted = environments.requirements_of(sys.executable, "openai", left_out=("anyio",))
    assert any(line.startswith("pydantic") for line in wanted)
    assert not any(line.startswith("anyio") or "extra ==" in line for line in wanted)


def test_what_an_engines_process_reads_before_its_engine_needs_no_package():
    script = "import sys; import benchmarks.worker, benchmarks.peers.environments; print({*sys.modules})"
    done = subprocess.run([sys.executable, "-S", "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not {"tokenizers", "numpy", "torch", "rich", "minipaged"} & set(eval(done.stdout))


def test_an_unknown_environment_is_refused(capsys):
    assert main(["install", "lama"]) == 2
    assert "'lama' is none of vllm, openvino, llamacpp" in capsys.readouterr().err


def test_what_could_not_be_installed_is_said_at_the_end_and_the_others_are_tried(monkeypatch, capsys):
    def refuse(family, say):
        say(f"{family} ...")
        if family == "vllm":
            raise RuntimeError("no space")

    monkeypatch.setattr("benchmarks.peers.__main__.install", refuse)
    assert main(["install"]) == 1
    said = capsys.readouterr()
    assert said.out == "vllm ...\nopenvino ...\nllamacpp ...\n"
    assert said.err == "could not be installed: vllm: no space\n"


def test_pieces_of_a_run_keep_their_numbers_apart_and_nothing_is_lost():
    first = merge(None, document([record("minipaged:4", 0, 1.0), record("vllm:float32", 0, 2.0)], interrupted=True))
    second = merge(first, document([record("minipaged:4", next_repetition(first), 3.0)], created="2026-01-02"))
    assert [r["repetition"] for r in second["repetitions"]] == [0, 0, 1]
    assert [(run["created"], run["repetitions"]) for run in second["runs"]] == [
        ("2026-01-01", [0]),
        ("2026-01-02", [1]),
    ]
    assert second["engines"].keys() == {"minipaged:4", "vllm:float32"}
    assert (next_repetition(None), next_repetition(second)) == (0, 2)


def test_a_piece_of_something_else_is_refused_before_anything_is_measured(tmp_path, capsys):
    out = tmp_path / "x.json"
    out.write_text(json.dumps(merge(None, document([record("minipaged:4", 0, 1.0)]))))
    assert main(["run", "--engines", "transformers:one", "--scale", "0.5", "--model", "m", "--out", str(out)]) == 2
    assert "--out has scale 1.0, this run 0.5" in capsys.readouterr().err


def test_a_gguf_file_which_not_all_can_read_is_refused_in_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("MINIPAGED_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(commands, "prepare", lambda *args: pytest.fail("prepared"))
    path, _ = tiny_gguf(tmp_path)
    options = ["--ours", "minipaged:4", "--engines", "transformers:one", "--out", str(tmp_path / "x.json")]
    assert main(["run", "--model", str(path), *options]) == 2
    message = f"--model {path}: its weights are in a GGUF file, which not all engines here can read"
    assert capsys.readouterr().err.splitlines()[-1] == f"python -m benchmarks.peers: error: {message}"


def test_a_ratio_is_of_what_was_measured_side_by_side_and_a_missed_goal_says_by_how_much():
    records = [
        record(e, i, rate) for i in range(3) for e, rate in (("minipaged:4", 90.0 + i), ("openvino:float32", 100.0))
    ]
    [outcome] = find_outcomes(document(records))
    assert (outcome.target.theirs, outcome.ratios, outcome.median) == ("openvino:float32", [0.9, 0.91, 0.92], 0.91)
    assert verdict_of(outcome) == "reached 0.75; 9% short of 1"
    assert verdict_of(outcome._replace(ratios=[0.6])) == "missed by 20%"
    assert verdict_of(outcome._replace(ratios=[1.02])) == "reached"


def test_tables_show_the_floor_the_spread_and_own_cost():
    records = [record("minipaged:4", i, 100.0 + 2 * i, own_cost=0.04) for i in range(3)]
    records += [record("vllm:float32", i, 100.0) for i in range(3)]
    text = io.StringIO()
    print_tables(Console(file=text, width=150), merge(None, document(records)))
    shown = text.getvalue()
    for words in ("263", "102 ± 2%", "1.02", "reached 1; 7% short of 1.1", "4.0% of W2", "goal 5%, reached"):
        assert words in shown, words


def test_every_target_compares_figures_that_its_workload_has():
    keys = {"W1": "decode_tokens_per_s", "W2": "output_tokens_per_s", "W3": "output_tokens_per_s"}
    assert all(target.key == keys.get(target.workload, "prompt_tokens_per_s") for target in TARGETS)
    assert all(Outcome(target, "", []).median == 0 for target in TARGETS)


def test_one_stream_is_not_asked_for_many_and_batches_are_filled():
    assert [suits("llamacpp:f32-1", w) for w in ("W1", "W2", "W3", "W4")] == [True, False, False, True]
    assert [suits("llamacpp:f32-16", w) for w in ("W1", "W2", "W3", "W4")] == [False, True, True, False]
    assert all(suits("vllm:float32", w) for w in ("W1", "W2", "W3", "W4"))
    assert [
        is_batched(n) for n in ("transformers:static16", "transformers:one", "vllm:float32", "llamacpp:f32-16")
    ] == [
        True,
        False,
        False,
        True,
    ]


def test_ours_come_first_and_must_be_ours():
    plan = make_plan(make_parser().parse_args(["run", "--engines", "vllm:float32"]), first=2)
    assert (plan.engines, plan.first, plan.part) == (("minipaged:4", "minipaged:4-int8", "vllm:float32"), 2, 16)
    with pytest.raises(ValueError, match="--ours vllm:float32"):
        make_plan(make_parser().parse_args(["run", "--ours", "vllm:float32"]), first=0)
