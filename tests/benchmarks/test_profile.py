"""A profile of a workload: its parts are the run, its floors are of the steps that were made, its picture is drawn."""

import json

import pytest

pytest.importorskip("matplotlib", reason="matplotlib comes with the extra named bench")

from benchmarks import plot, profile
from tests.tiny import tiny_model


def test_a_workload_is_measured_and_drawn(tmp_path, monkeypatch):
    monkeypatch.setattr(profile, "measure_limits", lambda *_: {"product_gflop_s": 100.0, "memory_read_gb_s": 10.0})
    folder = tiny_model(tmp_path / "model", vocab_size=256)
    out = tmp_path / "results" / "profile.json"
    flags = ["--model", str(folder), "--workloads", "W1", "--scale", "0.1", "--level", "3", "--out", str(out)]
    assert profile.main(flags) == 0
    found = json.loads(out.read_text())["workloads"]["W1"]
    assert sum(found["spent_s"].values()) == pytest.approx(found["wall_s"])
    assert found["steps"] == 13  # a step for the prompt, and one for each token but the first
    assert 0 < found["floors_s"]["attention"] < found["floors_s"]["products"] < found["wall_s"]
    assert (tmp_path / "figures" / "profile-w1.png").stat().st_size > 10_000
    assert plot.main([str(out), "--out", str(tmp_path / "again")]) == 0
    assert (tmp_path / "again" / "profile-w1.png").stat().st_size > 10_000


def test_an_unknown_workload_is_refused(tmp_path, capsys):
    assert profile.main(["--workloads", "W9", "--out", str(tmp_path / "p" / "x.json")]) == 2
    assert "--workloads W9: there are W1, W2, W3, W4" in capsys.readouterr().err
