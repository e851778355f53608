"""The command: one document with everything in it, tables that fit, and pictures drawn from the document alone."""

import json

import pytest

from benchmarks import plot, run
from minipaged.models.hub import resolve_model
from tests.tiny import tiny_model
from tests.tiny_gguf import tiny_gguf

KEYS = {"created", "command", "machine", "versions", "commit", "dirty", "model", "threads", "scale", "seed"}
KEYS |= {"interrupted", "limits", "engines", "workloads", "repetitions"}
RECORD = {"workload", "engine", "repetition", "num_requests", "subset", "prompt_tokens", "output_tokens", "wall_s"}
RECORD |= {"ttft_s", "output_tokens_per_s", "prompt_tokens_per_s", "decode_tokens_per_s", "model_s", "own_cost"}
RECORD |= {"checksum", "agreement"}
ENGINES = "transformers:static16,minipaged:3"


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """The file of one real run of two engines, as short as it gets."""
    folder = tmp_path_factory.mktemp("run")
    model, out = tiny_model(folder / "model", vocab_size=256), folder / "found" / "result.json"
    options = ["--workloads", "W1,W3", "--engines", ENGINES, "--repetitions", "2", "--scale", "0.02", "--threads", "1"]
    assert run.main([*options, "--model", str(model), "--out", str(out)]) == 0
    return out


def test_the_document_is_complete(measured):
    document = json.loads(measured.read_text())
    assert set(document) == KEYS
    assert document["machine"]["cores"] >= 1
    assert document["versions"]["torch"]
    assert set(document["limits"]) == {"product_gflop_s", "memory_read_gb_s"}
    assert all(set(record) == RECORD for record in document["repetitions"])
    order = [(r["repetition"], r["workload"], r["engine"]) for r in document["repetitions"]]
    assert order == [(i, w, e) for i in range(2) for w in ("W1", "W3") for e in ENGINES.split(",")]


def test_ours_agree_with_transformers_token_by_token(measured):
    records = json.loads(measured.read_text())["repetitions"]
    theirs, ours = records[::2], records[1::2]
    assert [record["checksum"] for record in ours] == [record["checksum"] for record in theirs]
    assert all(record["agreement"]["equal_tokens"] == 1 for record in ours)
    assert all(0 < record["own_cost"] < 1 for record in ours)


def test_pictures_are_drawn_from_the_document_alone(measured, tmp_path, capsys):
    document = json.loads(measured.read_text())
    document["workloads"]["W2"] = {**document["workloads"]["W3"], "what": "64 requests at once"}
    document["repetitions"] += [{**record, "workload": "W2"} for record in document["repetitions"]]
    (tmp_path / "again.json").write_text(json.dumps(document))
    assert plot.main([str(tmp_path / "again.json"), "--out", str(tmp_path / "figures")]) == 0
    written = sorted(path.name for path in (tmp_path / "figures").iterdir())
    assert written == ["again.png", "readme.png"]
    assert all((tmp_path / "figures" / name).stat().st_size > 5000 for name in written)


@pytest.mark.parametrize("text", ["not json", "[]", "{}"])
def test_a_file_that_is_no_document_is_refused_by_its_name(tmp_path, capsys, text):
    path = tmp_path / "odd.json"
    path.write_text(text)
    assert plot.main([str(path), "--out", str(tmp_path)]) == 2
    assert "odd.json is no document" in capsys.readouterr().err


def test_of_all_results_those_are_drawn_that_can_be():
    found = {path.stem for path in plot.find_documents(run.RESULTS)}
    assert "cpu-full-w2-w3" in found
    assert not any(name.startswith("allocator") for name in found)


def plan_of(*argv):
    return run.make_plan(run.make_parser().parse_args(argv))


def test_the_default_is_the_ladder():
    plan = plan_of()
    assert plan.engines[:3] == ("minipaged:1", "minipaged:2", "minipaged:3")
    assert (plan.workloads, plan.repetitions, plan.scale) == (("W2",), 3, 0.25)


def test_what_is_given_counts_beside_full_and_quick():
    full = plan_of("--full", "--repetitions", "5")
    assert full.engines[:2] == ("transformers:one", "transformers:static16")
    assert (full.workloads, full.repetitions, full.scale) == (("W1", "W2", "W3", "W4"), 5, 1.0)
    assert plan_of("--quick", "--workloads", "W4").workloads == ("W4",)


def test_a_gguf_file_which_not_all_can_read_is_refused_in_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("MINIPAGED_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(run, "measure_limits", lambda *args: pytest.fail("measured"))
    path, _ = tiny_gguf(tmp_path)
    for model in (path, resolve_model(str(path))):
        assert run.main(["--quick", "--model", str(model), "--out", str(tmp_path / "x.json")]) == 2
        message = f"--model {model}: its weights are in a GGUF file, which not all engines here can read"
        assert capsys.readouterr().err.splitlines()[-1] == f"python -m benchmarks.run: error: {message}"


def test_named_engines_come_alone_or_before_the_levels_asked_for():
    assert plan_of("--engines", "transformers:one").engines == ("transformers:one",)
    assert plan_of("--engines", "transformers:one", "--levels", "2-3").engines[1:] == ("minipaged:2", "minipaged:3")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--levels", "x", "--model", "./nowhere"], "--levels x"),
        (["--levels", "1-", "--model", "./nowhere"], "--levels 1-"),
        (["--full", "--quick"], "--full and --quick"),
        (["--workloads", "W9"], "--workloads W9"),
        (["--engines", "nobody"], "nobody"),
        (["--model", "./nowhere", "--out", "{tmp}/x.json"], "nowhere does not exist"),
        (["--out", "{tmp}"], "cannot be written"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(tmp_path, capsys, argv, message):
    assert run.main([word.replace("{tmp}", str(tmp_path)) for word in argv]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert message in error
    assert error.startswith("python -m benchmarks.run: error: ")
