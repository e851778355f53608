"""A model whose weights stay in a GGUF file is the one of the float32 folder made of it, and no float32 is written."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFValueType, GGUFWriter
from safetensors.numpy import load_file

from minipaged import LLM, SamplingParams
from minipaged.models import gguf_tensors, quantization
from minipaged.models.config import read_model_config
from minipaged.models.decoder import Decoder
from minipaged.models.gguf_convert import INERT, convert
from minipaged.models.gguf_tensors import TYPES, GgufTensors
from minipaged.models.hub import resolve_model
from minipaged.models.quantization import list_tensors
from minipaged.models.weights import load_weights
from minipaged.ops import choose_ops
from minipaged.parallel.place import Layout
from tests.parallel.crew import places
from tests.tiny_gguf import TOKENS, Tensors, gguf_of_all_types, tiny_gguf

CPU = torch.device("cpu")
WORDS = {"chat_template.jinja", "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Tensors]:
    return gguf_of_all_types(tmp_path_factory.mktemp("gguf"))


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory, source: tuple[Path, Tensors]) -> Path:
    """The same in float32."""
    folder = tmp_path_factory.mktemp("wide")
    convert(source[0], folder, lambda num_bytes: None)
    return folder


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MINIPAGED_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def load(folder: Path, way: str, place=None) -> dict[str, tuple[torch.Tensor, ...]]:
    model = Decoder(read_model_config(folder), choose_ops("torch", torch.float32, CPU), torch.float32, CPU, place, way)
    load_weights(model, folder)
    return {name: list_tensors(piece.memory) for name, piece in model.checkpoint().items()}


def test_the_folder_holds_words_and_a_link(source: tuple[Path, Tensors], cache: Path) -> None:
    folder = resolve_model(str(source[0]))
    assert {path.name for path in folder.iterdir()} == WORDS | {"model.gguf", "model.gguf.index.json"}
    assert (folder / "model.gguf").readlink() == source[0]
    assert {path.name for path in cache.iterdir()} == {folder.name, f".{folder.name}.lock"}
    assert resolve_model(str(source[0])) == folder


def test_the_files_ending_may_be_in_capital_letters(tmp_path: Path) -> None:
    path, _ = tiny_gguf(tmp_path)
    path = path.rename(tmp_path / "TINY.GGUF")
    assert (resolve_model(str(path)) / "model.gguf").readlink() == path


def test_every_type_is_read_as_gguf_reads_it(source: tuple[Path, Tensors], wide: Path) -> None:
    path, expected = source
    folder = resolve_model(str(path))
    assert {entry.type for entry in GgufTensors(folder / "model.gguf").index.values()} == set(TYPES)
    for name, (tensor,) in load(folder, "none").items():
        np.testing.assert_array_equal(tensor.numpy(), expected[name], err_msg=name)
    converted = load_file(wide / "model.safetensors")
    assert converted.keys() == expected.keys()
    assert all(np.array_equal(tensor, expected[name]) for name, tensor in converted.items())


@pytest.mark.parametrize("layout", [Layout(), Layout(2), Layout(num_stages=2)], ids=str)
@pytest.mark.parametrize("way", ["int8", "int4", "fp8"])
def test_codes_and_scales_are_those_of_the_converted_folder(
    source: tuple[Path, Tensors], wide: Path, monkeypatch: pytest.MonkeyPatch, way: str, layout: Layout
) -> None:
    expected = [load(wide, way, place) for place in places(layout)]
    monkeypatch.setattr(gguf_tensors, "ROWS", 7)
    monkeypatch.setattr(quantization, "ROWS", 20)
    folder = resolve_model(str(source[0]))
    for place, theirs in zip(places(layout), expected, strict=True):
        for name, parts in load(folder, way, place).items():
            assert len(parts) == len(theirs[name])
            assert all(map(torch.equal, parts, theirs[name])), name


@pytest.mark.parametrize("way", ["none", "int8", "int4"])
def test_the_same_words_are_said(source: tuple[Path, Tensors], wide: Path, way: str) -> None:
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    said = []
    for model in (source[0], wide):
        llm = LLM(str(model), quantization=way, num_blocks=16)
        said.append([output.outputs[0] for output in llm.generate(["ab 12", "hello"], params)])
    assert [(o.text, o.token_ids) for o in said[0]] == [(o.text, o.token_ids) for o in said[1]]


def test_a_file_that_was_replaced_is_read_anew(tmp_path: Path) -> None:
    path, _ = tiny_gguf(tmp_path)
    before = resolve_model(str(path))
    path.unlink()
    tiny_gguf(tmp_path, change=lambda writer: writer.add_string("general.name", "another"))
    assert resolve_model(str(path)) != before


def test_a_file_that_is_gone_or_shorter_than_it_was_is_refused_by_its_name(tmp_path: Path) -> None:
    path, _ = tiny_gguf(tmp_path)
    folder = resolve_model(str(path))
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=rf"^{path} is damaged: it has \d+ bytes, its index needs \d+"):
        load(folder, "int8")
    path.unlink()
    with pytest.raises(ValueError, match=rf"^{path} does not exist"):
        load(folder, "int8")
    with pytest.raises(ValueError, match=rf"model file {path} cannot be read: No such file or directory"):
        resolve_model(str(path))


@pytest.mark.parametrize("size", [0, 3, 20, 1000, 5000, -100])
def test_what_is_no_gguf_file_or_half_of_one_is_refused_by_its_name(tmp_path: Path, cache: Path, size: int) -> None:
    path, _ = tiny_gguf(tmp_path)
    whole = path.read_bytes()
    for damaged in (whole[:size], bytes(len(whole[:size]))):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=rf"^{path} cannot be read as a GGUF file: ") as error:
            resolve_model(str(path))
        assert "\n" not in str(error.value)
    assert all(found.suffix == ".lock" for found in cache.iterdir())


def leave_out(field: str):
    return lambda writer: writer.kv_data[0].pop(field)


def say(field: str, value: Any):
    kind = {
        bool: GGUFValueType.BOOL,
        int: GGUFValueType.UINT32,
        float: GGUFValueType.FLOAT32,
        str: GGUFValueType.STRING,
    }
    return lambda writer: writer.add_key_value(field, value, kind[type(value)])


def add(name: str, kind: GGMLQuantizationType = GGMLQuantizationType.F32):
    def change(writer: GGUFWriter) -> None:
        writer.add_tensor(name, np.zeros((1, 292), np.uint8), raw_dtype=kind)

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (leave_out("tokenizer.chat_template"), "tokenizer.chat_template is missing"),
        (leave_out("llama.attention.head_count_kv"), "llama.attention.head_count_kv is missing"),
        (leave_out("tokenizer.ggml.model"), "tokenizer.ggml.model is None, only 'gpt2' can be read"),
        (say("llama.rope.scaling.type", "yarn"), "llama.rope.scaling.type is 'yarn', only 'none' can be read"),
        (say("llama.rope.scale_linear", 4.0), "llama.rope.scale_linear is 4.0, only 0 or 1 can be read"),
        (say("llama.attention.sliding_window", 64), "llama.attention.sliding_window is 64, only 0 can be read"),
        (say("llama.attention.key_length", 8), "llama.attention.key_length is 8, only 16 can be read"),
        (say("tokenizer.ggml.add_bos_token", True), "tokenizer.ggml.add_bos_token is True, only False can be read"),
        (say("tokenizer.ggml.add_eos_token", True), "tokenizer.ggml.add_eos_token is True, only False can be read"),
        (say("tokenizer.ggml.add_space_prefix", True), "tokenizer.ggml.add_space_prefix is True, only False can be"),
        (say("llama.logit_scale", 2.0), "fields that are not understood: llama.logit_scale"),
        (say("tokenizer.ggml.of_tomorrow", 1), "fields that are not understood: tokenizer.ggml.of_tomorrow"),
        (
            lambda writer: writer.kv_data[0]["tokenizer.ggml.eos_token_id"].__setattr__("value", 99),
            "tokenizer.ggml.eos_token_id is 99, and there are 43 tokens",
        ),
        (add("blk.attn_q.weight"), "tensor blk.attn_q.weight is unknown"),
        (add("rope_freqs.weight"), "tensor rope_freqs.weight is unknown"),
        (
            add("output.weight", GGMLQuantizationType.Q8_K),
            "tensor output.weight is Q8_K; what can be read is F32, F16,",
        ),
    ],
)
def test_what_is_not_understood_is_refused_by_file_and_name(tmp_path: Path, cache: Path, change, message: str) -> None:
    path, _ = tiny_gguf(tmp_path, change=change)
    with pytest.raises(ValueError, match=f"^{path}: {message}"):
        resolve_model(str(path))
    assert all(found.suffix == ".lock" for found in cache.iterdir())


def say_all(writer: GGUFWriter) -> None:
    for field, values in INERT.items():
        say(field, values[-1])(writer)
    for field, value in {"general.author": "x", "quantize.imatrix.file": "y"}.items():
        say(field, value)(writer)
    writer.add_key_length(16)
    writer.add_value_length(16)
    writer.add_token_scores([0.0] * len(TOKENS))


def test_fields_that_change_nothing_may_be_there(tmp_path: Path) -> None:
    assert resolve_model(str(tiny_gguf(tmp_path, change=say_all)[0])).exists()


def leave_out_tensor(writer: GGUFWriter) -> None:
    del writer.tensors[0]["blk.0.attn_q.weight"], writer.tensors[0]["output_norm.weight"]


def misshape(writer: GGUFWriter) -> None:
    writer.tensors[0]["blk.0.attn_k.weight"].shape = (32, 16)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (leave_out_tensor, r"{}: missing in the checkpoint: blk\.0\.attn_q\.weight, output_norm\.weight"),
        (misshape, r"blk\.0\.attn_k\.weight in {} has shape \[32, 16\], not \[16, 32\]"),
        (add("blk.1.ffn_up.weight"), r"{}: unknown in the checkpoint: blk\.1\.ffn_up\.weight"),
    ],
)
def test_a_wrong_tensor_is_refused_by_the_file_that_was_given_and_its_name_there(
    tmp_path: Path, change, message
) -> None:
    path, _ = tiny_gguf(tmp_path, change=change)
    with pytest.raises(ValueError, match=f"^{message.format(path)}$"):
        load(resolve_model(str(path)), "none")


def test_a_head_of_its_own_is_read(tmp_path: Path) -> None:
    head = np.full((len(TOKENS), 32), 0.5, np.float32)
    path, _ = tiny_gguf(tmp_path, change=lambda writer: writer.add_tensor("output.weight", head))
    folder = resolve_model(str(path))
    assert not read_model_config(folder).tie_word_embeddings
    assert (load(folder, "none")["lm_head.weight"][0] == 0.5).all()
