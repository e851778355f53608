"""The benchmark of replicas: both ways are asked the same, and the document says on how many cores."""

import json

from benchmarks import replicas
from minipaged.cli import DONE

from ..tiny import tiny_model


def test_one_and_two_are_asked_the_same(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    folder, out = tiny_model(tmp_path / "model", vocab_size=300), tmp_path / "out.json"
    assert replicas.main(["--model", str(folder), "--scale", "0.05", "--repetitions", "1", "--out", str(out)]) == DONE
    document = json.loads(out.read_text())
    one, two = document["records"]
    assert (one["replicas"], two["replicas"], two["equal_requests"]) == (1, 2, 64)
    assert one["output_tokens"] == two["output_tokens"] > 64
    assert one["cores_each"] <= document["machine"]["cores"]
    assert "beside one" in capsys.readouterr().out
