"""python -m levels compare: every level on the same requests, and refusals before anything is loaded."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from levels import NAMES
from levels.__main__ import main
from levels.compare import LENGTHS, parse_levels
from minipaged import loading
from minipaged.cli import DONE, FAILED, REFUSED
from minipaged.config import EngineConfig
from minipaged.tokenizer import load_tokenizer

from ..fake_model import FakeModel
from ..tiny import tiny_model
from ..tiny_tokenizer import tiny_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return load_tokenizer(tiny_tokenizer(tmp_path_factory.mktemp("tokenizer")))


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tokenizer: Any) -> FakeModel:
    """Whatever --model says is this quick one."""
    model = FakeModel(vocab_size=96)
    model.tokenizer = tokenizer
    monkeypatch.setattr(loading, "load_model", lambda config: model)
    return model


@pytest.fixture
def unloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test fails if a model is loaded."""

    def load_model(config: EngineConfig) -> None:
        raise AssertionError("the model was loaded")

    monkeypatch.setattr(loading, "load_model", load_model)


def test_every_level_runs_the_same_requests_in_the_same_memory(fake: FakeModel, tmp_path: Path, capsys: Any) -> None:
    target = tmp_path / "all.json"
    assert main(["compare", "--json", str(target)]) == DONE
    out, err = capsys.readouterr()
    assert err == ""
    assert all(name.replace("_", " ") in out for name in NAMES)
    runs = json.loads(target.read_text())["runs"]
    assert [run["level"] for run in runs] == NAMES
    answers = [[request["token_ids"] for request in run["requests"]] for run in runs]
    assert answers == [answers[0]] * len(NAMES)
    assert [len(token_ids) for token_ids in answers[0]] == LENGTHS
    assert all(run["config"]["num_blocks"] * run["config"]["block_size"] == 4096 for run in runs)


def test_each_level_gains_on_the_one_before(fake: FakeModel, capsys: Any) -> None:
    assert main(["compare", "--json", "-"]) == DONE
    metrics = [run["metrics"] for run in json.loads(capsys.readouterr().out)["runs"]]
    assert metrics[0]["kv"]["waste"] >= 0.6
    assert metrics[1]["kv"]["waste"] <= 0.1
    assert metrics[0]["steps"] > metrics[1]["steps"] >= metrics[2]["steps"]


def test_one_level_alone_and_a_picture(fake: FakeModel, tmp_path: Path, capsys: Any) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib comes with the extra named bench")
    assert main(["compare", "--levels", "2", "--plot", str(tmp_path / "x.svg")]) == DONE
    out = capsys.readouterr().out
    assert "02 paged attention" in out
    assert "01 basic" not in out
    assert (tmp_path / "x.svg").read_bytes().startswith(b"<?xml")


@pytest.mark.parametrize(("text", "expected"), [("1-3", [1, 2, 3]), ("2", [2]), ("2-2", [2]), ("02", [2])])
def test_levels_are_a_number_or_a_range(text: str, expected: list[int]) -> None:
    assert parse_levels(text) == expected


@pytest.mark.parametrize(
    "text", ["", "-", "1-", "-3", "a", "1-b", "1-2-3", "1,2", "²", "1.5", "0", "0-2", "3-1", "9", "1-9"]
)
@pytest.mark.usefixtures("unloaded")
def test_other_levels_are_refused(text: str, capsys: Any) -> None:
    assert main(["compare", f"--levels={text}"]) == REFUSED
    _, err = capsys.readouterr()
    assert err.count("\n") == 1
    assert "--levels" in err


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["--plot", "x.jpg"], "--plot 'x.jpg': a picture ends in"),
        (["--plot", ""], "--plot '': a picture ends in"),
        (["--plot", "-"], "--plot '-': a picture ends in"),
        (["--plot", "/nowhere/x.png"], "--plot '/nowhere/x.png' cannot be written"),
        (["--json", "/nowhere/x.json"], "--json '/nowhere/x.json' cannot be written"),
        (["--json", ""], "--json '' cannot be written"),
        (["--json", "x.png", "--plot", "x.png"], "have the same target"),
    ],
)
@pytest.mark.usefixtures("unloaded")
def test_results_without_a_place_are_refused(argv: list[str], named: str, capsys: Any, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib comes with the extra named bench")
    assert main(["compare", *argv]) == REFUSED
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert named in err


def test_a_model_that_cannot_chat_is_one_line(tmp_path: Path, capsys: Any) -> None:
    assert main(["compare", "--model", str(tiny_model(tmp_path))]) == REFUSED
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[-1].endswith("request 0: this model has no chat template: give prompt or prompt_token_ids")


def test_an_interrupt_reports_what_was_measured(
    fake: FakeModel, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward, first_level = FakeModel.__call__, 300

    def interrupted(model: FakeModel, *args: Any) -> Any:
        if model.num_forwards == first_level:
            model.num_forwards += 1
            raise KeyboardInterrupt
        return forward(model, *args)

    monkeypatch.setattr(FakeModel, "__call__", interrupted)
    assert main(["compare", "--json", str(tmp_path / "all.json")]) == FAILED
    out, err = capsys.readouterr()
    assert err == "python -m levels: interrupted; what was finished until then is reported\n"
    runs = json.loads((tmp_path / "all.json").read_text())["runs"]
    assert [run["level"] for run in runs] == NAMES[:2]
    assert "abort" in {request["finish_reason"] for request in runs[1]["requests"]}
    assert "02 paged attention" in out
    assert os.listdir(tmp_path) == ["all.json"]


def test_a_failing_request_is_a_failed_comparison(fake: FakeModel, capsys: Any) -> None:
    fake.unlucky = frozenset({4})  # the header of every answer
    assert main(["compare", "--levels", "3", "--json", "-"]) == FAILED
    out, err = capsys.readouterr()
    assert len(json.loads(out)["runs"]) == 1
    assert "12 of 12 requests failed; request 0: the model's logits are NaN" in err
