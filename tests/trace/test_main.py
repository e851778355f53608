"""python -m minipaged.trace: one file in, one out, one line when it cannot be."""

import json
from pathlib import Path

import pytest

from minipaged.cli import DONE, REFUSED
from minipaged.trace.__main__ import main

STEP = {
    "step": 0,
    "t_s": 0.0,
    "num_scheduled_tokens": {"0": 3},
    "admitted": ["0"],
    "preempted": [],
    "finished": [],
    "num_waiting": 0,
    "num_running": 1,
    "num_free_blocks": 3,
}


def write(tmp_path: Path, document: object) -> str:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(document))
    return str(path)


def test_a_trace_becomes_trace_events(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    assert main([write(tmp_path, {"steps": [STEP]}), "--perfetto", str(out)]) == DONE
    events = json.loads(out.read_text())["traceEvents"]
    assert [event["name"] for event in events if event["ph"] == "X"] == ["admitted, 3 tokens"]


def test_a_dash_is_stdout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([write(tmp_path, {"steps": []}), "--perfetto", "-"]) == DONE
    assert json.loads(capsys.readouterr().out)["traceEvents"] == []


@pytest.mark.parametrize(
    "document",
    [
        [],
        3,
        None,
        {},
        {"steps": 3},
        {"steps": [3]},
        {"steps": [{}]},
        {"steps": [{**STEP, "t_s": "0"}]},
        {"requests": []},
    ],
)
def test_what_is_no_trace_is_refused_by_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], document: object
) -> None:
    source = write(tmp_path, document)
    assert main([source, "--perfetto", str(tmp_path / "out.json")]) == REFUSED
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert source in err
    assert not (tmp_path / "out.json").exists()


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"[" * 100_000])
def test_what_is_no_json_is_refused_by_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], data: bytes
) -> None:
    (tmp_path / "trace.json").write_bytes(data)
    assert main([str(tmp_path / "trace.json"), "--perfetto", "-"]) == REFUSED
    assert "trace.json is no step trace" in capsys.readouterr().err


def test_a_missing_file_and_a_missing_folder_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "nowhere.json"), "--perfetto", "-"]) == REFUSED
    assert "nowhere.json" in capsys.readouterr().err
    source = write(tmp_path, {"steps": []})
    assert main([source, "--perfetto", str(tmp_path / "missing" / "out.json")]) == REFUSED
    assert "--perfetto" in capsys.readouterr().err


@pytest.mark.parametrize("argv", [[], ["x"], ["--perfetto", "-"], ["x", "--nonsense"]])
def test_wrong_arguments_are_one_line(capsys: pytest.CaptureFixture[str], argv: list[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(argv)
    assert end.value.code == REFUSED
    assert capsys.readouterr().err.count("\n") == 1
