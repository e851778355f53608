"""A model written as GGUF is the same model: read back by the house's own reader, number for number."""

import json

import numpy as np
import pytest
from gguf import GGUFReader
from safetensors.numpy import load_file

from benchmarks.peers import gguf_files
from benchmarks.peers.environments import converted
from minipaged.models.gguf_convert import Metadata, _find_tensor
from minipaged.models.gguf_tensors import GgufTensors
from tests.tiny import tiny_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("gguf"), intermediate_size=64, tie_word_embeddings=True, bos_token_id=1)


def read_back(folder, kind, monkeypatch, tmp_path):
    monkeypatch.setenv("MINIPAGED_PEERS", str(tmp_path))
    gguf_files.main(folder, kind)
    reader = GGUFReader(path := converted(folder, f"{kind}.gguf"))
    metadata = Metadata(path, {name: field.contents() for name, field in reader.fields.items()})
    file = GgufTensors(path, dict(_find_tensor(tensor, metadata) for tensor in reader.tensors))
    return metadata, {name: file.get_slice(name).whole for name in file.index}


@pytest.mark.parametrize(("kind", "error"), [("f32", 0.0), ("f16", 1e-3), ("q8_0", 1e-2), ("q4_1", 0.1)])
def test_tensors_come_back_under_their_names_as_exact_as_the_format_allows(folder, monkeypatch, tmp_path, kind, error):
    metadata, tensors = read_back(folder, kind, monkeypatch, tmp_path)
    expected = load_file(folder / "model.safetensors")
    assert tensors.keys() == expected.keys() - {"lm_head.weight"}
    for name, weight in tensors.items():
        assert np.abs(weight - expected[name]).max() <= error * np.abs(expected[name]).max(), name
    assert metadata["llama.attention.head_count_kv"] == 2
    assert metadata["tokenizer.ggml.model"] == "no_vocab"


def test_a_file_that_is_there_is_not_written_again(folder, monkeypatch, tmp_path):
    read_back(folder, "f16", monkeypatch, tmp_path)
    before = converted(folder, "f16.gguf").stat().st_mtime_ns
    gguf_files.main(folder, "f16")
    assert converted(folder, "f16.gguf").stat().st_mtime_ns == before
    assert [path.suffix for path in converted(folder, "f16.gguf").parent.iterdir()] == [".gguf"]


def test_words_are_written_in_the_order_of_their_ids(folder):
    class Writer(dict):
        def __getattr__(self, name):
            return lambda value: self.__setitem__(name, value)

    vocab, special = {"b": 1, "a": 0, "<end>": 2}, [{"id": 2, "content": "<end>", "special": True}]
    described = {"model": {"vocab": vocab, "merges": [["a", "b"]]}, "added_tokens": special}
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(described))
    try:
        gguf_files.write_vocabulary(written := Writer(), folder, {"bos_token_id": 2, "eos_token_id": 2})
    finally:
        path.unlink()
    assert written["add_token_list"] == ["a", "b", "<end>"]
    assert written["add_token_types"] == [1, 1, 3]
    assert written["add_token_merges"] == ["a b"]


def test_another_architecture_is_refused_by_its_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("MINIPAGED_PEERS", str(tmp_path / "peers"))
    other = tiny_model(tmp_path / "model", kind="qwen2")
    with pytest.raises(ValueError, match="only a Llama without biases"):
        gguf_files.main(other, "f32")
