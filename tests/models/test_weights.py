"""Every parameter is filled exactly once, or the file and the tensor at fault are named."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from minipaged.config import EngineConfig
from minipaged.loading import load_model
from minipaged.models import weights
from minipaged.models.config import read_model_config
from minipaged.models.decoder import Decoder
from minipaged.models.weights import fill_with_noise, load_weights
from minipaged.ops import choose_ops
from minipaged.parallel.place import Layout
from tests.parallel.crew import places
from tests.tiny import tiny_model

CPU = torch.device("cpu")
Q_PROJ = "model.layers.1.self_attn.q_proj.weight"


LAYOUTS = [Layout(2), Layout(4), Layout(num_stages=2), Layout(2, 2)]


def build(folder, dtype=torch.float32, place=None):
    return Decoder(read_model_config(folder), choose_ops("torch", dtype, CPU), dtype, CPU, place)


def load(folder, dtype=torch.float32, place=None):
    model = build(folder, dtype, place)
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
    pieces = load(folder, dtype).checkpoint()
    assert pieces.keys() == tensors.keys()
    for name, (memory, _) in pieces.items():
        assert memory.dtype == dtype
        assert torch.equal(memory, tensors[name].to(dtype)), name


def test_shards_hold_the_same_model(tmp_path):
    folder = tiny_model(tmp_path)
    whole = load(folder).checkpoint()
    split(folder)
    for name, (memory, _) in load(folder).checkpoint().items():
        assert torch.equal(memory, whole[name].memory), name


def test_half_precision_files_are_widened_to_the_dtype_asked_for(tmp_path):
    folder = tiny_model(tmp_path)
    rewrite(folder, lambda tensors: tensors.update({name: t.half() for name, t in tensors.items()}))
    model = load(folder)
    assert model.entrance.weight.dtype == torch.float32
    assert torch.equal(
        model.entrance.weight, load_file(folder / "model.safetensors")["model.embed_tokens.weight"].float()
    )


def test_a_tied_head_is_the_embedding_whether_or_not_the_file_repeats_it(tmp_path):
    folder = tiny_model(tmp_path, tie_word_embeddings=True)
    assert "lm_head.weight" not in load_file(folder / "model.safetensors")
    model = load(folder)
    assert model.exit.lm_head.weight.data_ptr() == model.entrance.weight.data_ptr()
    repeat = {"lm_head.weight": model.entrance.weight.clone()}
    rewrite(folder, lambda tensors: tensors.update(repeat))
    again = load(folder)
    assert again.exit.lm_head.weight.data_ptr() == again.entrance.weight.data_ptr()
    assert torch.equal(again.entrance.weight, model.entrance.weight)


def test_a_tied_head_that_differs_from_the_embedding_is_refused(tmp_path):
    folder = tiny_model(tmp_path, tie_word_embeddings=True)
    other = {"lm_head.weight": load(folder).entrance.weight + 1}
    rewrite(folder, lambda tensors: tensors.update(other))
    with pytest.raises(ValueError, match=r"lm_head.weight in .*model.safetensors is not the embedding"):
        load(folder)


def test_an_untied_head_that_is_missing_is_refused(tmp_path):
    folder = tiny_model(tmp_path)
    rewrite(folder, lambda tensors: tensors.pop("lm_head.weight"))
    with pytest.raises(ValueError, match=r"missing in the checkpoint: lm_head.weight"):
        load(folder)


CHANGES = pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("model.layers.1.mlp.up_proj.weight"), r"missing .*: model.layers.1.mlp.up_proj.weight$"),
        (lambda t: [t.pop(n) for n in list(t) if "layers.0" in n], "missing .* and 4 more"),
        (lambda t: t.update({"model.layers.2.mlp.up_proj.weight": torch.ones(2)}), "unknown .*model.layers.2.mlp"),
        (lambda t: t.update({Q_PROJ: t[Q_PROJ].T.contiguous()}), r"q_proj.weight .*shape \[32, 64\], not \[64, 32\]"),
        (lambda t: t.update({Q_PROJ: t[Q_PROJ].long()}), "q_proj.weight .*I64"),
    ],
)


@CHANGES
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
    first, second = build(folder), build(folder)
    fill_with_noise(first)
    fill_with_noise(second)
    for name, (memory, _) in first.checkpoint().items():
        assert torch.equal(memory, second.checkpoint()[name].memory), name
        assert memory.isfinite().all()
    assert load_model(EngineConfig(model=str(folder), load_format="dummy")).vocab_size == 96


def assemble(models, shapes):
    """What the ranks have, put together as in the file; NaN where nobody has anything."""
    whole = {name: torch.full(shape, torch.nan) for name, shape in shapes.items()}
    for model in models:
        for name, (memory, index) in model.checkpoint().items():
            there = whole[name][index]
            assert memory.shape == there.shape, name
            assert (there.isnan() | (there == memory)).all(), name  # what two ranks have is the same
            whole[name][index] = memory
    return whole


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_ranks_have_together_what_the_file_says(tmp_path, kind, layout):
    biases = {} if kind == "qwen2" else {"attention_bias": True}
    folder = tiny_model(
        tmp_path, kind, vocab_size=33, intermediate_size=49, tie_word_embeddings=kind == "qwen3", **biases
    )
    tensors = load_file(folder / "model.safetensors")
    models = [load(folder, place=place) for place in places(layout)]
    assembled = assemble(models, {name: tensor.shape for name, tensor in tensors.items()})
    for name, tensor in tensors.items():
        assert torch.equal(assembled[name], tensor), name


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_dummy_weights_are_the_same_however_they_are_split(tmp_path, layout):
    folder = tiny_model(tmp_path, vocab_size=33, attention_bias=True, mlp_bias=True)
    whole, parts = build(folder), [build(folder, place=place) for place in places(layout)]
    for model in (whole, *parts):
        fill_with_noise(model)
    expected = {name: piece.memory for name, piece in whole.checkpoint().items()}
    assembled = assemble(parts, {name: memory.shape for name, memory in expected.items()})
    for name, memory in expected.items():
        assert torch.equal(assembled[name], memory), name


def test_padding_holds_zeros(tmp_path):
    folder = tiny_model(tmp_path, vocab_size=33, tie_word_embeddings=False)
    last = load(folder, place=places(Layout(4))[-1])
    assert (last.entrance.weight[6:] == 0).all()
    assert (last.exit.lm_head.weight[6:] == 0).all()
    assert last.entrance.weight.shape == last.exit.lm_head.weight.shape == (9, 32)


@pytest.mark.parametrize("rank", [0, 3])
@CHANGES
def test_every_rank_refuses_a_checkpoint_whoever_would_need_the_tensor(tmp_path, change, message, rank):
    folder = tiny_model(tmp_path)
    rewrite(folder, change)
    with pytest.raises(ValueError, match=message):
        load(folder, place=places(Layout(2, 2))[rank])


def test_a_tied_head_that_differs_is_seen_by_whoever_has_the_words(tmp_path):
    folder = tiny_model(tmp_path, tie_word_embeddings=True)
    other = {"lm_head.weight": load(folder).entrance.weight.clone()}
    other["lm_head.weight"][-1, -1] += 1  # on the second of two ranks
    rewrite(folder, lambda tensors: tensors.update(other))
    load(folder, place=places(Layout(2))[0])
    for place in (places(Layout(2))[1], *places(Layout(num_stages=2))):
        with pytest.raises(ValueError, match=r"lm_head.weight in .* is not the embedding"):
            load(folder, place=place)


class Witness:
    """A safetensors file that counts the numbers that are read from it."""

    num_read = 0

    def __init__(self, *args, **options):
        self.file = weights_safe_open(*args, **options)

    def __enter__(self):
        self.inside = self.file.__enter__()
        return self

    def __exit__(self, *reason):
        return self.file.__exit__(*reason)

    def keys(self):
        return self.inside.keys()

    def get_slice(self, name):
        return Slice(self.inside.get_slice(name))


class Slice:
    def __init__(self, whole):
        self.get_shape, self.get_dtype, self.whole = whole.get_shape, whole.get_dtype, whole

    def __getitem__(self, index):
        part = self.whole[index]
        Witness.num_read += part.numel()
        return part


weights_safe_open = weights.safe_open


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_rank_reads_its_part_of_the_file_and_no_more(tmp_path, monkeypatch, layout):
    folder = tiny_model(tmp_path, num_hidden_layers=4)
    monkeypatch.setattr(weights, "safe_open", Witness)
    total = sum(tensor.numel() for tensor in load_file(folder / "model.safetensors").values())
    for place in places(layout):
        Witness.num_read = 0
        model = load(folder, place=place)
        assert Witness.num_read == sum(piece.memory.numel() for piece in model.checkpoint().values())
        assert Witness.num_read < total
