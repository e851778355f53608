"""The benchmark of HTTP: both ways serve the same requests to their ends, and what fails is an error."""

import json
from contextlib import contextmanager

import pytest

from benchmarks import serving
from minipaged.bench.figures import Timing
from minipaged.cli import DONE

from ..serving.conftest import thread_llm
from ..serving.model import byte_model
from ..serving.running import running


def test_both_ways_serve_the_same(tmp_path, monkeypatch, capsys):
    folder, out = byte_model(tmp_path / "bytes"), tmp_path / "out.json"

    @contextmanager
    def server(options):
        with running(lambda: thread_llm(folder)) as found:
            yield found.url

    monkeypatch.setattr(serving, "server", server)
    monkeypatch.setattr(serving, "SETTINGS", {"max_model_len": 256, "num_blocks": 64, "max_num_seqs": 16})
    flags = ["--model", str(folder), "--scale", "0.02", "--repetitions", "1", "--out", str(out)]
    assert serving.main(flags) == DONE
    records = json.loads(out.read_text())["records"]
    assert [record["way"] for record in records] == ["python", "http"]
    assert len({(record["prompt_tokens"], record["output_tokens"]) for record in records}) == 1
    assert all(len(record["ttft_alone_s"]) == serving.NUM_ALONE for record in records)
    assert "beside Python" in capsys.readouterr().out


def test_a_request_that_fails_is_an_error():
    good, bad = Timing(0.0, 0.0, [1.0], 1.0, 1, 1), Timing(0.0, error="gone")
    with pytest.raises(RuntimeError, match=r"http: .*gone"):
        serving.record("http", 0, ([good, bad], 1.0), [good])
