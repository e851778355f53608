"""A level's command line from the outside: exit codes, documents, and one line for whatever goes wrong."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from levels import NAMES, load
from levels.lesson import main
from minipaged import loading
from minipaged.cli import DONE, FAILED, REFUSED
from minipaged.config import DEFAULT_MODEL, EngineConfig
from minipaged.tokenizer import load_tokenizer

from ..fake_model import FakeModel
from ..tiny import greedy_tokens, tiny_model
from ..tiny_tokenizer import WORDS, tiny_tokenizer

ROOT = Path(__file__).parents[2]
LEVELS = tuple(range(1, len(NAMES) + 1))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_tokenizer(tiny_model(tmp_path_factory.mktemp("tiny")))


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Any:
    return load_tokenizer(folder)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tokenizer: Any) -> FakeModel:
    """Whatever --model says is this quick one."""
    model = FakeModel(vocab_size=96, eos_token_ids=frozenset({2}))
    model.tokenizer = tokenizer

    def load_model(config: EngineConfig) -> FakeModel:
        return model

    monkeypatch.setattr(loading, "load_model", load_model)
    return model


@pytest.fixture
def unloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test fails if a model is loaded."""

    def load_model(config: EngineConfig) -> None:
        raise AssertionError("the model was loaded")

    monkeypatch.setattr(loading, "load_model", load_model)


@pytest.fixture
def prompts(tmp_path: Path) -> Callable[..., str]:
    def write(*lines: object) -> str:
        path = tmp_path / "prompts.jsonl"
        path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
        return str(path)

    return write


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    """What stderr says, which is one line; stdout says nothing."""
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("python -m levels.0")
    return err


@pytest.mark.parametrize("level", LEVELS)
def test_the_document_has_transformers_tokens(level: int, folder: Path, prompts: Any, capsys: Any) -> None:
    token_ids = [[7, 8, 9], [5, 6], [40] * 11]
    path = prompts(*({"prompt_token_ids": ids, "max_tokens": 6} for ids in token_ids))
    argv = ["--model", str(folder), "--prompts", path, "--num-blocks", "16", "--max-model-len", "32", "--json", "-"]
    assert main(level, argv) == DONE
    document = json.loads(capsys.readouterr().out)
    assert document["level"] == NAMES[level - 1]
    assert document["config"]["num_blocks"] == 16
    assert [request["token_ids"] for request in document["requests"]] == greedy_tokens(folder, token_ids, 6)
    assert document["requests"][0]["text"].split() == [WORDS[i] for i in document["requests"][0]["token_ids"]]


def test_prompts_come_before_the_file_and_lines_in_their_order(fake: FakeModel, prompts: Any, capsys: Any) -> None:
    path = prompts(
        "", {"messages": [{"role": "user", "content": "w7"}]}, "", {"prompt_token_ids": [9], "max_tokens": 2}
    )
    argv = ["--prompt", "w5", "--prompt", "w6 w7", "--prompts", path, "--max-tokens", "3", "--ignore-eos"]
    assert main(3, [*argv, "--json", "-"]) == DONE
    requests = json.loads(capsys.readouterr().out)["requests"]
    assert [r["prompt_token_ids"] for r in requests] == [[5], [6, 7], [1, 3, 7, 2, 1, 4], [9]]
    assert [len(r["token_ids"]) for r in requests] == [3, 3, 3, 2]


def test_json_and_trace_are_written_and_people_read_the_answers(fake: FakeModel, tmp_path: Path, capsys: Any) -> None:
    argv = ["--prompt", "w5 w6", "--ignore-eos", "--json", str(tmp_path / "out.json")]
    assert main(3, [*argv, "--trace", str(tmp_path / "trace.json")]) == DONE
    document = json.loads((tmp_path / "out.json").read_text())
    steps = json.loads((tmp_path / "trace.json").read_text())["steps"]
    out, err = capsys.readouterr()
    assert err == ""
    assert "03 continuous batching" in out
    assert document["requests"][0]["finish_reason"] in out
    assert len(steps) == document["metrics"]["steps"] == 16
    assert steps[0]["num_scheduled_tokens"] == {"0": 2}
    assert sorted(os.listdir(tmp_path)) == ["out.json", "trace.json"]


@pytest.mark.parametrize("level", range(1, len(NAMES) + 1))
def test_several_answers_to_one_prompt_are_shown_and_written(
    level: int, fake: FakeModel, prompts: Any, tmp_path: Path, capsys: Any
) -> None:
    path = prompts(
        {"prompt": "w5 w6", "n": 2, "temperature": 4, "seed": 3}, {"prompt": "w7", "max_tokens": 2, "ignore_eos": True}
    )
    assert main(level, ["--prompts", path, "--json", str(tmp_path / "out.json")]) == DONE
    several, single = json.loads((tmp_path / "out.json").read_text())["requests"]
    assert [choice["index"] for choice in several["choices"]] == [0, 1]
    assert "choices" not in single
    out = capsys.readouterr().out
    for number, said in [("0.0", several["choices"][0]), ("0.1", several["choices"][1]), ("  1", single)]:
        assert f"{number}  {said['text']} ({said['finish_reason']})" in out


def test_a_trace_on_stdout_is_all_there_is(fake: FakeModel, tmp_path: Path, capsys: Any) -> None:
    assert main(3, ["--prompt", "w5", "--trace", "-", "--json", str(tmp_path / "out.json")]) == DONE
    assert json.loads(capsys.readouterr().out)["steps"]
    assert json.loads((tmp_path / "out.json").read_text())["requests"]


def test_the_demonstration_runs_the_level_below_and_then_this_one(fake: FakeModel, tmp_path: Path, capsys: Any) -> None:
    assert main(3, ["--json", str(tmp_path / "out.json")]) == DONE
    out = capsys.readouterr().out
    for expected in ("02 paged", "03 continuous", "Ten people, four seats", "→ output tokens/s"):
        assert expected in out
    assert len(json.loads((tmp_path / "out.json").read_text())["requests"]) == 10


@pytest.mark.parametrize("level", LEVELS[:-1])  # the last one serves
def test_the_demonstration_with_a_document_on_stdout_is_that_document(level: int, fake: FakeModel, capsys: Any) -> None:
    here = ["--distributed-executor-backend", "uniproc"] if level >= 6 else []  # the fake model is in this process
    assert main(level, ["--json", "-", *here]) == DONE
    document = json.loads(capsys.readouterr().out)
    assert document["level"] == NAMES[level - 1]
    assert document["config"]["max_model_len"] == load(level, "demo").CONFIG["max_model_len"]


def test_a_lesson_of_several_parts_is_a_table_for_each(fake: FakeModel, capsys: Any) -> None:
    fake.drafts = {DEFAULT_MODEL: FakeModel(vocab_size=96)}
    for model in (fake, fake.drafts[DEFAULT_MODEL]):
        model.model_config = SimpleNamespace(max_position_embeddings=2048)
    assert main(5, []) == DONE
    out, _ = capsys.readouterr()
    assert out.count("tokens per forward") == 3
    assert out.count("100% right") == 1, "the model that drafts for itself"
    assert out.count("04 prefix caching") == 3


def test_level_06_shows_what_each_rank_holds_and_sends_and_when_it_waits(
    folder: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = [{"prompt_token_ids": [5 + i, 6], "max_tokens": 6, "ignore_eos": True} for i in range(4)]
    monkeypatch.setattr(load(6, "demo"), "REQUESTS", few)
    assert main(6, ["--model", str(folder), "--pipeline-parallel-size", "2"]) == DONE
    out = capsys.readouterr().out
    for expected in ("05 speculative", "06 tensor", "All of it on one rank: it fits"):
        assert expected in out
    assert out.count("    stage 1  |") == 3
    assert [f"{n} in flight: stages work" in out for n in (1, 2, 4)] == [True] * 3
    rows = [line.replace("│", " ").split() for line in out.splitlines() if "MB" in line]
    assert [(row[0], row[-2:]) for row in rows] == [("0", ["128", "128"]), ("1", ["0", "0"])], (
        "counted = by the formula"
    )


def test_a_setting_that_the_level_below_cannot_serve_is_said_and_this_level_runs(fake: FakeModel, capsys: Any) -> None:
    assert main(2, ["--num-blocks", "60"]) == DONE
    out, err = capsys.readouterr()
    assert err.startswith("01_basic cannot run this: num_blocks x block_size = 960 slots")
    assert "02 paged" in out
    assert "01 basic" not in out


def test_seed_draws_the_same_again(fake: FakeModel, capsys: Any) -> None:
    def draw(*argv: str) -> Any:
        flags = ["--prompt", "w5", "--temperature", "50", "--max-tokens", "8", "--ignore-eos", "--json", "-", *argv]
        assert main(3, flags) == DONE
        return json.loads(capsys.readouterr().out)["requests"][0]["token_ids"]

    assert draw("--seed", "1") == draw("--seed", "1") != draw("--seed", "2")
    assert draw() == draw()


# --- refused before the model is loaded


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["--max-tokens", "0"], "max_tokens"),
        (["--temperature", "-1"], "temperature"),
        (["--temperature", "nan"], "temperature"),
        (["--top-p", "0"], "top_p"),
        (["--top-k", "-2"], "top_k"),
        (["--num-blocks", "0"], "num_blocks"),
        (["--block-size", "0"], "block_size"),
        (["--max-model-len", "1"], "max_model_len"),
        (["--gpu-memory-utilization", "1.5"], "gpu_memory_utilization"),
        (["--seed", str(2**63)], "seed"),
        (["--prompts", ""], "Is a directory"),
        (["--prompts", "/nowhere/prompts.jsonl"], "/nowhere/prompts.jsonl: No such file"),
        (["--json", "/nowhere/out.json"], "--json '/nowhere/out.json' cannot be written"),
        (["--trace", "/nowhere/out.json"], "--trace '/nowhere/out.json' cannot be written"),
        (["--json", ""], "--json '' cannot be written"),
        (["--json", "-", "--trace", "-"], "--json and --trace have the same target"),
        (["--prompt", "\udcff"], "lone surrogate"),
    ],
)
@pytest.mark.usefixtures("unloaded")
def test_bad_arguments_are_refused_before_the_model_is_loaded(argv: list[str], named: str, capsys: Any) -> None:
    assert main(3, argv) == REFUSED
    assert named in one_line(capsys)


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("{", "no JSON"),
        ({"prompt": "w5", "max_tokens": 0}, "max_tokens"),
        ({"prompt": "w5", "n_tokens": 3}, "n_tokens"),
        ({"prompt": "w5", "prompt_token_ids": [3]}, "exactly one of"),
        ({"prompt": 3}, "prompt must be text"),
        ({"prompt": "w5", "priority": 0.5}, "priority"),
        ({"messages": []}, "messages"),
    ],
)
@pytest.mark.usefixtures("unloaded")
def test_a_bad_line_is_refused_before_the_model_is_loaded(
    line: object, named: str, prompts: Any, tmp_path: Path, capsys: Any
) -> None:
    argv = ["--prompts", prompts({"prompt": "w5"}, "", line), "--json", str(tmp_path / "out.json")]
    assert main(3, argv) == REFUSED
    message = one_line(capsys)
    assert "prompts.jsonl, line 3: " in message
    assert named in message
    assert not (tmp_path / "out.json").exists()


# --- refused by the model, before anything runs


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ({"prompt_token_ids": [7] * 64, "max_tokens": 1}, "64 tokens; max_model_len 64"),  # policy 1
        (
            {"prompt_token_ids": [7] * 60, "max_tokens": 5},
            "max_tokens 5 + a prompt of 60 = 65 tokens exceed max_model_len 64",
        ),
        ({"prompt_token_ids": [7] * 33, "max_tokens": None}, "33 tokens needs 3 blocks of 16; the whole pool has 2"),
        ({"prompt_token_ids": []}, "the prompt is empty"),  # policy 2
        ({"prompt": ""}, "the prompt is empty"),
        ({"prompt_token_ids": [96]}, "prompt_token_ids[0]"),
    ],
)
def test_what_the_policies_refuse_is_a_bad_line(
    line: object, named: str, fake: FakeModel, prompts: Any, tmp_path: Path, capsys: Any
) -> None:
    path = prompts({"prompt": "w5"}, line, {"prompt": "w5"})
    argv = ["--prompts", path, "--num-blocks", "2", "--max-model-len", "64", "--json", str(tmp_path / "out.json")]
    assert main(3, argv) == REFUSED
    message = one_line(capsys)
    assert "prompts.jsonl, line 2: " in message
    assert named in message
    assert fake.num_forwards == 0
    assert not (tmp_path / "out.json").exists()


def test_a_folder_without_a_tokenizer_refuses_text_and_runs_token_ids(
    tmp_path: Path, prompts: Any, capsys: Any
) -> None:
    argv = ["--model", str(tiny_model(tmp_path / "bare")), "--num-blocks", "4", "--max-model-len", "32"]
    assert main(3, [*argv, "--prompt", "w5"]) == REFUSED
    assert "--prompt 'w5': this model has no tokenizer: give prompt_token_ids" in one_line(capsys)
    assert main(3, [*argv, "--prompts", prompts({"prompt_token_ids": [5]}), "--json", "-"]) == DONE
    [request] = json.loads(capsys.readouterr().out)["requests"]
    assert (request["text"], len(request["token_ids"])) == ("", 16)


@pytest.mark.parametrize("flags", [["--model", "{}/nowhere"], ["--model", "{}"], ["--model", ""]])
def test_a_model_that_is_none_is_one_line(flags: list[str], tmp_path: Path, capsys: Any) -> None:
    assert main(3, [flag.format(tmp_path) for flag in flags] + ["--prompt", "w5"]) == REFUSED
    one_line(capsys)


# --- failures while running


@pytest.mark.parametrize("level", LEVELS)
def test_a_failed_request_is_documented_and_named(level: int, fake: FakeModel, tmp_path: Path, capsys: Any) -> None:
    fake.unlucky = frozenset({95})
    argv = ["--prompt", "w5 w95", "--prompt", "w5", "--ignore-eos", "--max-tokens", "2", "--max-model-len", "32"]
    assert main(level, [*argv, "--json", str(tmp_path / "out")]) == FAILED
    requests = json.loads((tmp_path / "out").read_text())["requests"]
    assert [request["finish_reason"] for request in requests] == ["error", "length"]
    out, err = capsys.readouterr()
    assert err.count("\n") == 1
    assert "1 of 2 requests failed; request 0: the model's logits are NaN at position 1" in err
    assert "NaN" in out


def test_a_run_that_raises_is_one_line_and_no_document(
    fake: FakeModel, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: object) -> None:
        raise ValueError("a bad\nkernel")

    monkeypatch.setattr(FakeModel, "__call__", broken)
    assert main(3, ["--prompt", "w5", "--json", str(tmp_path / "out.json")]) == FAILED
    assert "error: the run failed: ValueError: a bad kernel" in one_line(capsys)
    assert os.listdir(tmp_path) == []


def interrupt_in_forward(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    forward = FakeModel.__call__

    def interrupted(model: FakeModel, *args: Any) -> Any:
        if model.num_forwards == number:
            model.num_forwards += 1
            raise KeyboardInterrupt
        return forward(model, *args)

    monkeypatch.setattr(FakeModel, "__call__", interrupted)


@pytest.mark.parametrize("level", LEVELS)
def test_an_interrupted_run_writes_what_there_is(
    level: int, fake: FakeModel, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt_in_forward(monkeypatch, 2)
    argv = ["--prompt", "w5", "--prompt", "w6 w7", "--ignore-eos", "--max-model-len", "32"]
    argv += ["--json", str(tmp_path / "out.json"), "--trace", str(tmp_path / "trace.json")]
    assert main(level, argv) == FAILED
    out, err = capsys.readouterr()
    assert err.count("\n") == 1
    assert "interrupted" in err
    requests = json.loads((tmp_path / "out.json").read_text())["requests"]
    assert [(r["finish_reason"], len(r["token_ids"])) for r in requests] == [("abort", 2), ("abort", 2)]
    steps = json.loads((tmp_path / "trace.json").read_text())["steps"]
    assert [step["num_scheduled_tokens"] for step in steps[:2]] == [{"0": 1, "1": 2}, {"0": 1, "1": 1}]
    assert "abort" in out


def test_an_interrupt_on_the_level_below_ends_the_lesson(
    fake: FakeModel, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt_in_forward(monkeypatch, 2)
    assert main(3, ["--json", str(tmp_path / "out.json")]) == FAILED
    assert "interrupted" in one_line(capsys)
    assert fake.num_forwards == 3
    assert os.listdir(tmp_path) == []


def test_an_interrupt_while_loading_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def load_model(config: EngineConfig) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(loading, "load_model", load_model)
    assert main(3, ["--prompt", "w5"]) == FAILED
    assert "interrupted" in one_line(capsys)


def test_ctrl_c_while_waiting_for_an_arrival_writes_the_document(
    fake: FakeModel, prompts: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    nap = time.sleep

    def sleep(seconds: float) -> None:
        os.kill(os.getpid(), signal.SIGINT)  # a real one
        nap(5.0)

    monkeypatch.setattr(time, "sleep", sleep)
    lines = [{"prompt_token_ids": [5], "max_tokens": 2}, {"prompt_token_ids": [5], "arrival_s": 600}]
    assert main(3, ["--prompts", prompts(*lines), "--ignore-eos", "--json", "-"]) == FAILED
    out, err = capsys.readouterr()
    requests = json.loads(out)["requests"]
    assert [(r["finish_reason"], len(r["token_ids"])) for r in requests] == [("length", 2), ("abort", 0)]
    assert err.count("\n") == 1


STARTED = """
import sys
from levels.lesson import main
from minipaged.cli import leave
print("started", flush=True)
leave(lambda: main(3, sys.argv[1:]))
"""


def test_ctrl_c_again_and_again_while_loading_is_no_traceback(folder: Path) -> None:
    pipe, command = subprocess.PIPE, [sys.executable, "-c", STARTED, "--model", str(folder), "--prompt", "w5"]
    with subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "started\n"
        time.sleep(0.3)  # torch takes seconds to import
        while process.poll() is None:
            process.send_signal(signal.SIGINT)
            time.sleep(0.05)
        _, err = process.communicate(timeout=60)
    assert err in ("", "python -m levels.03_continuous_batching: interrupted\n")  # "": while it was being said
    assert process.returncode in (FAILED, -signal.SIGINT)  # the last one may hit Python when it is all but gone
