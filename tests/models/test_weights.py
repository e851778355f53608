"""Every parameter is filled exactly once, or the file and the tensor at fault are named."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from minipaged.config import EngineConfig
from minipaged.loading import load_model
from minipaged.models.config import read_model_config
from minipaged.models.decoder import Decoder
from minipaged.models.weights import fill_with_noise, load_weights
from minipaged.ops import choose_ops
from tests.tiny import tiny_model

CPU = torch.device("cpu")
Q_PROJ = "model.layers.1.self_attn.q_proj.weight"


def load(folder, dtype=torch.float32):
    model = Decoder(read_model_config(folder), choose_ops("torch", dtype, CPU), dtype, CPU)
    load_weights(model, folder)
    return model


def rewrite(folder, change):
    """Apply `change` to the checkpoint's dictionary."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def split(folder):
    """The same checkpoint in two shards and an index."""
    tensors = load_file(folder / "model.safetensors")
    names = sorted(tensors)
    shards = {"a.safetensors": names[:5], "b.safetensors": names[5:]}
    for shard, members in shards.items():
        save_file({name: tensors[name] for name in members}, folder / shard)
    (folder / "model.safetensors").unlink()
    weight_map = {name: shard for shard, members in shards.items() for name in members}
    write_index(folder, weight_map)
    return weight_map


def write_index(folder, weight_map):
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_parameter_holds_what_the_file_says(tmp_path, kind, dtype):
    folder = tiny_model(tmp_path, kind)
    tensors = load_file(folder / "model.safetensors")
    places = load(folder, dtype).checkpoint()
    assert places.keys() == tensors.keys()
    for name, place in places.items():
        assert place.dtype == dtype
        assert torch.equal(place, tensors[name].to(dtype)), name


def test_shards_hold_the_same_model(tmp_path):
    folder = tiny_model(tmp_path)
    whole = load(folder).checkpoint()
    split(folder)
    for name, place in load(folder).checkpoint().items():
        assert torch.equal(place, whole[name]), name


def test_half_precision_files_are_widened_to_the_dtype_asked_for(tmp_path):
    folder = tiny_model(tmp_path)
    rewrite(folder, lambda tensors: tensors.update({name: t.half() for name, t in tensors.items()}))
    model = load(folder)
    assert model.embedding.dtype == torch.float32
    assert torch.equal(model.embedding, load_file(folder / "model.safetensors")["model.embed_tokens.weight"].float())


def test_a_tied_head_is_the_embedding_whether_or_not_the_file_repeats_it(tmp_path):
    folder = tiny_model(tmp_path, tie_word_embeddings=True)
    assert "lm_head.weight" not in load_file(folder / "model.safetensors")
    model = load(folder)
    assert model.lm_head.weight.data_ptr() == model.embedding.data_ptr()
    repeat = {"lm_head.weight": model.embedding.clone()}
    rewrite(folder, lambda tensors: tensors.update(repeat))
    again = load(folder)
    assert again.lm_head.weight.data_ptr() == again.embedding.data_ptr()
    assert torch.equal(again.embedding, model.embedding)


def test_a_tied_head_that_differs_from_the_embedding_is_refused(tmp_path):
    folder = tiny_model(tmp_path, tie_word_embeddings=True)
    other = {"lm_head.weight": load(folder).embedding + 1}
    rewrite(folder, lambda tensors: tensors.update(other))
    with pytest.raises(ValueError, match=r"lm_head.weight in .*model.safetensors is not the embedding"):
        load(folder)


def test_an_untied_head_that_is_missing_is_refused(tmp_path):
    folder = tiny_model(tmp_path)
    rewrite(folder, lambda tensors: tensors.pop("lm_head.weight"))
    with pytest.raises(ValueError, match=r"missing in the checkpoint: lm_head.weight"):
        load(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("model.layers.1.mlp.up_proj.weight"), r"missing .*: model.layers.1.mlp.up_proj.weight$"),
        (lambda t: [t.pop(n) for n in list(t) if "layers.0" in n], "missing .* and 4 more"),
        (lambda t: t.update({"model.layers.2.mlp.up_proj.weight": torch.ones(2)}), "unknown .*model.layers.2.mlp"),
        (lambda t: t.update({Q_PROJ: t[Q_PROJ].T.contiguous()}), r"q_proj.weight .*shape \[32, 64\], not \[64, 32\]"),
        (lambda t: t.update({Q_PROJ: t[Q_PROJ].long()}), "q_proj.weight .*torch.int64"),
    ],
)
def test_a_tensor_that_is_missing_unknown_or_misshapen_is_named(tmp_path, change, message):
    folder = tiny_model(tmp_path)
    rewrite(folder, change)
    with pytest.raises(ValueError, match=message) as error:
        load(folder)
    assert str(folder) in str(error.value)


def test_a_damaged_or_absent_file_is_named(tmp_path):
    folder = tiny_model(tmp_path)
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"model.safetensors is damaged"):
        load(folder)
    path.write_bytes(b"")
    with pytest.raises(ValueError, match=r"model.safetensors is damaged"):
        load(folder)
    path.unlink()
    with pytest.raises(ValueError, match=r"model.safetensors does not exist"):
        load(folder)


def test_shards_and_index_must_agree(tmp_path):
    folder = tiny_model(tmp_path)
    weight_map = split(folder)
    write_index(folder, {**weight_map, Q_PROJ: "a.safetensors"})
    with pytest.raises(ValueError, match=rf"{Q_PROJ} is in model.safetensors.index.json but not in a.safetensors"):
        load(folder)
    write_index(folder, {name: shard for name, shard in weight_map.items() if name != Q_PROJ})
    with pytest.raises(ValueError, match=rf"{Q_PROJ} is in b.safetensors but not in model.safetensors.index.json"):
        load(folder)
    write_index(folder, {**weight_map, "extra": "c.safetensors"})
    with pytest.raises(ValueError, match=r"c.safetensors does not exist"):
        load(folder)
    (folder / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(ValueError, match=r"has no weight_map"):
        load(folder)


def test_dummy_weights_need_a_config_only_and_are_always_the_same(tmp_path):
    folder = tiny_model(tmp_path, "qwen2")
    (folder / "model.safetensors").unlink()
    ops = choose_ops("torch", torch.float32, CPU)
    first, second = (Decoder(read_model_config(folder), ops, torch.float32, CPU) for _ in range(2))
    fill_with_noise(first)
    fill_with_noise(second)
    for name, place in first.checkpoint().items():
        assert torch.equal(place, second.checkpoint()[name]), name
        assert place.isfinite().all()
    assert load_model(EngineConfig(model=str(folder), load_format="dummy")).vocab_size == 96
