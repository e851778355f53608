"""The benchmark of sampling runs, and says something of each kind of wishes."""

import pytest

from benchmarks import sampling
from minipaged.batch import pack
from minipaged.config import EngineConfig
from minipaged.loading import load_model

from ..tiny import tiny_model
from ..tiny_tokenizer import tiny_tokenizer


@pytest.fixture
def model(tmp_path):
    folder = tiny_tokenizer(tiny_model(tmp_path, vocab_size=256))
    return load_model(EngineConfig(model=str(folder)))


def test_every_kind_of_wishes_has_a_figure(model, monkeypatch):
    calls = []
    monkeypatch.setattr(sampling, "best_seconds", lambda work: calls.append(work()) or 0.5)
    figures = sampling.run(model, num_rows=10, context=8)
    assert list(figures) == ["forward", *sampling.WISHES, "mixed", "masks", "logprobs=5"]
    assert set(figures.values()) == {500.0}
    assert len(calls) == len(figures)


def test_a_batch_to_decode_has_a_row_for_each_with_its_wishes(model):
    kinds = ["greedy", "penalised", "biased", "allowed", "structured"]
    batch = pack(sampling.decoding(kinds, context=8, block_size=4, vocabulary=model.vocabulary), 4)
    assert (batch.positions, batch.seq_lens, len(batch.token_ids)) == ([7] * 5, [8] * 5, 5)
    assert [row.has_wishes for row in batch.rows] == [False, True, True, True, True]
    assert [len(row.output) for row in batch.rows] == [0, 6, 0, 0, 0]
    assert [row.permitted is None for row in batch.rows] == [True] * 4 + [False]
