"""What is kept of a lesson is what its table shows, of both levels."""

import json
from types import SimpleNamespace

import pytest

from benchmarks import lessons
from levels import load
from minipaged import loading
from minipaged.config import EngineConfig
from minipaged.tokenizer import load_tokenizer

from ..fake_model import FakeModel
from ..tiny import tiny_model
from ..tiny_tokenizer import tiny_tokenizer


@pytest.fixture
def fake(monkeypatch, tmp_path):
    """Level 04's lesson on a quick model, for three people."""
    model = FakeModel(vocab_size=96, eos_token_ids=frozenset({2}))
    model.tokenizer = load_tokenizer(tiny_tokenizer(tiny_model(tmp_path)))

    def load_model(config: EngineConfig) -> FakeModel:
        return model

    monkeypatch.setattr(loading, "load_model", load_model)
    demo = load(4, "demo")
    monkeypatch.setattr(
        demo, "REQUESTS", [{"prompt_token_ids": [*range(3, 40), i], "max_tokens": 3} for i in (3, 4, 5)]
    )


def test_both_columns_of_the_table_are_kept_with_what_the_trace_adds_up_to(fake):
    ((table,),) = [lessons.measure(4, [])["tables"]]
    below, here = table["below"], table["here"]
    assert (below["level"], here["level"]) == ("03_continuous_batching", "04_prefix_caching")
    assert below["tokens_run"] - here["tokens_run"] == here["metrics"]["prefix_cache_hit_tokens"] == 2 * 32
    assert here["at_once"] == 3
    assert here["tokens_by_replica"] == {"0": here["tokens_run"]}
    assert 0 < here["metrics"]["ttft_s"]["mean"] <= here["short_s"] <= here["last_s"]


def test_a_run_adds_to_what_is_there_and_says_where_it_was_measured(fake, tmp_path):
    out = tmp_path / "lessons.json"
    out.write_text(json.dumps({"03": "as it was"}))
    assert lessons.run(SimpleNamespace(numbers=[4], out=str(out))) == 0
    document = json.loads(out.read_text())
    assert list(document) == ["03", "04"]
    assert document["03"] == "as it was"
    assert {"machine", "versions", "commit", "tables"} <= set(document["04"])
