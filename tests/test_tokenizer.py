"""What ends a text is gathered from three files; without a tokenizer there are no words."""

import json

import pytest

from minipaged.models.config import read_model_config
from minipaged.tokenizer import load_tokenizer, load_vocabulary
from tests.tiny import tiny_model


def vocabulary(folder):
    return load_vocabulary(folder, read_model_config(folder))


def test_end_of_text_is_what_any_of_three_files_says(tmp_path):
    folder = tiny_model(tmp_path, eos_token_id=[3, 4])
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 5}))
    assert vocabulary(folder).eos_token_ids == {3, 4, 5}
    (folder / "generation_config.json").unlink()
    assert vocabulary(folder).eos_token_ids == {3, 4}


def test_a_model_without_a_tokenizer_has_no_words(tmp_path):
    found = vocabulary(tiny_model(tmp_path))
    assert found.tokenizer is None
    assert found.decode([1, 2, 3]) == ""


def test_a_tokenizer_that_cannot_decode_step_by_step_is_refused_by_its_folder(tmp_path, monkeypatch):
    from transformers import AutoTokenizer

    monkeypatch.setattr(AutoTokenizer, "from_pretrained", lambda folder: object())
    (tmp_path / "vocab.json").write_text("{}")
    with pytest.raises(ValueError, match=f"{tmp_path}: an? object cannot decode step by step"):
        load_tokenizer(tmp_path)
