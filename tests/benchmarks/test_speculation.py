"""The benchmark of draft lengths: every engine says the same, and the document has every repetition."""

import json

import pytest

from benchmarks import speculation
from minipaged import loading
from minipaged.cli import DONE, REFUSED
from minipaged.tokenizer import load_tokenizer

from ..fake_model import FakeModel
from ..tiny_tokenizer import tiny_tokenizer


@pytest.fixture
def fake(monkeypatch, tmp_path):
    model = FakeModel(vocab_size=96)
    model.tokenizer = load_tokenizer(tiny_tokenizer(tmp_path))
    monkeypatch.setattr(loading, "load_model", lambda config: model)


@pytest.mark.usefixtures("fake")
def test_all_lengths_on_both_kinds_of_text(tmp_path, capsys):
    out = tmp_path / "out.json"
    assert speculation.main(["--quick", "--lengths", "1,3", "--out", str(out)]) == DONE
    records = json.loads(out.read_text())["records"]
    engines = ["level 04", "fixed 1", "fixed 3", "adaptive up to 3"]
    assert [(r["workload"], r["engine"]) for r in records] == [
        (w, e) for w in ("text to copy", "new text") for e in engines
    ]
    assert len({(record["workload"], record["output_tokens"]) for record in records}) == 2
    assert [record["draft_tokens"] is None for record in records] == [True, False, False, False] * 2
    assert "adaptive up to 3" in capsys.readouterr().out


def test_another_answer_is_an_error():
    turn = [{"engine": "level 04", "token_ids": [[1]]}, {"engine": "fixed 2", "token_ids": [[2]]}]
    with pytest.raises(RuntimeError, match="new text: other tokens than level 04's from fixed 2"):
        speculation.check_equal("new text", turn)


def test_a_length_that_is_no_number_is_one_line(capsys):
    assert speculation.main(["--lengths", "1,x"]) == REFUSED
    assert capsys.readouterr().err.count("\n") == 1
