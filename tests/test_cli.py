"""An error is one line with the flag in it, and a result appears whole or not at all."""

import argparse
import json
import os
import signal
import threading
from dataclasses import fields
from pathlib import Path

import pytest

from minipaged.cli import (
    DONE,
    FAILED,
    REFUSED,
    check_targets,
    default_params,
    engine_options,
    guarded,
    leave,
    leaving_at_once,
    make_parser,
    uninterrupted,
    write_json,
)
from minipaged.config import EngineConfig
from minipaged.sampling_params import SamplingParams

COMMON = (
    "--model --prompt --prompts --max-tokens --temperature --top-p --top-k --seed --ignore-eos --json --trace "
    "--device --dtype --load-format --attention-backend --max-model-len --max-num-seqs --num-blocks --block-size "
    "--gpu-memory-utilization --quantization --kv-cache-dtype --enforce-eager --no-enforce-eager --profile --debug "
    "--help"
)
SINCE_3 = ["--max-num-batched-tokens", "--long-prefill-token-threshold", "--scheduling-policy"]


def refused(capsys: pytest.CaptureFixture[str], level: int, *argv: str) -> str:
    """The one line with which these arguments are refused."""
    with pytest.raises(SystemExit) as end:
        make_parser(level, "name", "claim", {}).parse_args(argv)
    assert end.value.code == REFUSED
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err


def parse(*argv: str, level: int = 3) -> argparse.Namespace:
    args: argparse.Namespace = make_parser(level, "name", "claim", {}).parse_args(argv)
    return args


@pytest.mark.parametrize("level", [1, 2, 3])
def test_a_level_has_the_common_flags_and_those_up_to_its_own(level: int) -> None:
    flags = {word for action in make_parser(level, "n", "c", {})._actions for word in action.option_strings}
    assert flags - {"-h"} == {*COMMON.split(), *(SINCE_3 if level >= 3 else ())}


@pytest.mark.parametrize("form", ["{} 1", "{}=1", "{}"])
@pytest.mark.parametrize(("flag", "number"), [*((flag, 3) for flag in SINCE_3), ("--num-speculative-tokens", 5)])
def test_a_later_flag_is_refused_by_its_level(
    capsys: pytest.CaptureFixture[str], form: str, flag: str, number: int
) -> None:
    line = refused(capsys, 2, *form.format(flag).split())
    assert line == f"python -m levels.name: error: {flag} comes with level {number:02}, this is level 02\n"


def test_every_later_field_and_flag_is_known_by_its_level(capsys: pytest.CaptureFixture[str]) -> None:
    later = {"data_parallel_size": 7, "host": 8, "port": 8, "api_key": 8, "served_model_name": 8}
    for name, number in later.items():
        assert f"comes with level {number:02}" in refused(capsys, 3, "--" + name.replace("_", "-"))
    assert "--no-enable-prefix-caching comes with level 04" in refused(capsys, 3, "--no-enable-prefix-caching")


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["--nonsense"], "--nonsense"),
        (["--max-token", "3"], "--max-token"),  # no abbreviations: they would change their meaning with a new flag
        (["positional"], "positional"),
        (["--max-tokens"], "--max-tokens"),
        (["--max-tokens", "1.5"], "--max-tokens"),
        (["--temperature", "hot"], "--temperature"),
        (["--num-blocks", "many"], "--num-blocks"),
        (["--device", "tpu"], "--device"),
        (["--scheduling-policy", "lifo"], "--scheduling-policy"),
    ],
)
def test_wrong_arguments_are_named(capsys: pytest.CaptureFixture[str], argv: list[str], named: str) -> None:
    assert named in refused(capsys, 3, *argv)


def test_without_flags_sampling_is_greedy_and_the_engine_is_left_alone() -> None:
    args = parse()
    assert default_params(args) == SamplingParams(temperature=0)
    assert engine_options(args, 3) == {}


def test_flags_become_sampling_params_and_engine_fields() -> None:
    args = parse("--temperature=0.5", "--top-p=0.9", "--top-k=3", "--max-tokens=7", "--ignore-eos", "--num-blocks=9")
    expected = SamplingParams(temperature=0.5, top_p=0.9, top_k=3, max_tokens=7, ignore_eos=True)
    assert default_params(args) == expected
    assert engine_options(args, 3) == {"num_blocks": 9}


def test_seed_is_the_requests_and_the_engines() -> None:
    args = parse("--seed", "5")
    assert default_params(args).seed == 5
    assert engine_options(args, 3) == {"seed": 5}


def test_help_explains_every_flag_with_its_default(capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as end:
        parse("--help")
    assert end.value.code == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) < 80
    words = " ".join(text.split())
    for action in make_parser(3, "n", "c", {})._actions:
        assert action.help, action.option_strings
    for f in [f for f in fields(EngineConfig) if f.metadata["level"] <= 3]:
        assert "--" + f.name.replace("_", "-") in words
        assert f.default is None or f"(default {f.default})" in words, f.name
    for group in ("requests:", "sampling:", "results:", "engine:", "exit codes: 0 done"):
        assert group in words


def test_help_tells_what_the_demonstration_sets(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        make_parser(1, "name", "claim", {"num_blocks": 256}).parse_args(["--help"])
    assert "demonstration: 256" in " ".join(capsys.readouterr().out.split())


def test_results_need_a_place_that_exists(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    check_targets(json=str(tmp_path / "new.json"), trace="-", plot=None)
    for target in ("", str(tmp_path / "folder"), str(tmp_path / "missing" / "x.json"), "/proc/x.json/y"):
        with pytest.raises(ValueError, match=r"^--json .* cannot be written$"):
            check_targets(json=target)


def test_two_results_need_two_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to("same")
    for one, other in [
        ("-", "-"),
        ("same", "same"),
        ("same", "./same"),
        ("same", str(tmp_path / "same")),
        ("same", "link"),
    ]:
        with pytest.raises(ValueError, match="--json and --trace have the same target"):
            check_targets(json=one, trace=other)
    check_targets(json="same", trace="other")


def test_a_document_replaces_a_file_at_once_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    target = tmp_path / "out.json"
    target.write_text("old")
    with target.open() as old:
        write_json({"a": [1, None]}, str(target))
        assert old.read() == "old"  # whoever was reading still has the old one: it was renamed over, not rewritten
    assert json.loads(target.read_text()) == {"a": [1, None]}
    assert os.listdir(tmp_path) == ["out.json"]


def test_a_document_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    target = tmp_path / "out.json"
    target.write_text("old")
    with pytest.raises(ValueError, match="Out of range float"):
        write_json({"a": float("nan")}, str(target))
    with pytest.raises(RuntimeError, match=r"missing/out.json cannot be written: No such file or directory"):
        write_json({}, str(tmp_path / "missing" / "out.json"))
    assert target.read_text() == "old"
    assert os.listdir(tmp_path) == ["out.json"]


def test_an_interrupt_while_writing_leaves_nothing_beside_the_file(tmp_path: Path, monkeypatch) -> None:
    def interrupt(source: Path, target: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("os.replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_json({}, str(tmp_path / "out.json"))
    assert os.listdir(tmp_path) == []


def test_a_document_has_the_permissions_of_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    write_json({}, str(tmp_path / "out.json"))
    assert (tmp_path / "out.json").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("real.json")
    write_json([1], str(tmp_path / "link"))
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real.json").read_text() == "[1]\n"


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    check_targets(json=str(pipe))
    write_json([1], str(pipe))
    reader.join()
    assert read == ["[1]\n"]
    assert pipe.is_fifo()


def test_a_dash_is_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    write_json({"a": "é"}, "-")
    assert capsys.readouterr().out == '{"a": "\\u00e9"}\n'


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ValueError("3 is too much"), REFUSED, "prog: error: 3 is too much\n"),
        (TypeError("no number"), REFUSED, "prog: error: no number\n"),
        (FileNotFoundError(2, "No such file", "x"), REFUSED, "prog: error: [Errno 2] No such file: 'x'\n"),
        (RuntimeError("it broke\n\n  badly"), FAILED, "prog: error: it broke badly\n"),
        (AssertionError(), FAILED, "prog: error: AssertionError\n"),
        (KeyboardInterrupt(), FAILED, "prog: interrupted\n"),
    ],
)
def test_an_error_is_one_line_and_an_exit_code(capsys, error: BaseException, code: int, line: str) -> None:
    def work() -> int:
        raise error

    assert guarded("prog", False, work) == code
    assert capsys.readouterr() == ("", line)


def test_whoever_is_told_to_end_ends_as_by_ctrl_c(capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGTERM)
    assert guarded("prog", False, lambda: os.kill(os.getpid(), signal.SIGTERM) or DONE) == FAILED
    assert capsys.readouterr() == ("", "prog: interrupted\n")
    assert signal.getsignal(signal.SIGTERM) == before


def test_debug_adds_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded("prog", True, lambda: int("x")) == REFUSED
    assert capsys.readouterr().err.startswith("Traceback")


def test_a_character_that_the_terminal_lacks_is_no_failure(capfd: pytest.CaptureFixture[str], monkeypatch) -> None:
    with os.fdopen(os.dup(1), "w", encoding="ascii") as narrow:
        monkeypatch.setattr("sys.stdout", narrow)
        assert guarded("prog", False, lambda: print("naïve") or DONE) == DONE
    assert capfd.readouterr().out == "na?ve\n"


@pytest.mark.parametrize(("raised", "code"), [(False, DONE), (True, FAILED)])
def test_the_end_of_a_program_is_deaf_to_interrupts(raised: bool, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    set_to: list[tuple[int, object]] = []
    monkeypatch.setattr("signal.signal", lambda *handler: set_to.append(handler))

    def main() -> int:
        if raised:
            raise KeyboardInterrupt  # a second one, while the first was being reported
        return DONE

    with pytest.raises(SystemExit) as end:
        leave(main)
    assert end.value.code == code
    assert set_to == [(signal.SIGINT, signal.SIG_IGN)]


def test_a_flag_takes_what_its_field_takes():
    options = ["--num-speculative-tokens", "3", "--speculative-method", "draft_model", "--draft-model", "some/folder"]
    args = make_parser(5, "name", "claim", {}).parse_args([*options, "--gpu-memory-utilization", "0.5"])
    config = EngineConfig(**engine_options(args, 5))
    assert (config.num_speculative_tokens, config.draft_model, config.gpu_memory_utilization) == (3, "some/folder", 0.5)


def importing(done: list[str], error: Exception | None = None, number: int = signal.SIGINT) -> None:
    """An import in the midst of which a signal comes: Ctrl-C, unless another is named."""
    with uninterrupted():
        os.kill(os.getpid(), number)
        if error:
            raise error
        done.append("imported")


def test_a_server_that_is_told_to_end_while_it_is_imported_does_so_when_that_is_over() -> None:
    """With 0: it has nothing to finish."""
    before, done = signal.getsignal(signal.SIGTERM), list[str]()
    with pytest.raises(SystemExit) as ended, leaving_at_once():
        importing(done, number=signal.SIGTERM)
    assert (done, ended.value.code) == (["imported"], DONE)
    assert signal.getsignal(signal.SIGTERM) is before


def test_ctrl_c_during_an_import_counts_when_it_is_over() -> None:
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        importing(done)
    assert done == ["imported"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_import_that_fails_says_so_even_after_ctrl_c() -> None:
    with pytest.raises(ImportError, match="no such"):
        importing([], ImportError("no such"))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_where_ctrl_c_is_ignored_it_stays_so() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with uninterrupted():
            os.kill(os.getpid(), signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
