"""A model in fewer bits is the model of the weights that its codes stand for, whoever loads it and however split."""

import weakref

import pytest
import torch
from safetensors.torch import load_file, save_file

from levels import load as load_level
from minipaged.batch import Batch
from minipaged.cli import make_parser
from minipaged.config import EngineConfig
from minipaged.input_batch import to_device
from minipaged.kernels.linear_int4 import unpack_spec
from minipaged.kernels.linear_int4_triton import linear_int4
from minipaged.kernels.linear_int8 import linear_int8_spec
from minipaged.kernels.linear_int8_triton import linear_int8
from minipaged.kv_cache import KVCache
from minipaged.loading import load_model
from minipaged.models import quantization
from minipaged.models.config import read_model_config
from minipaged.models.decoder import Decoder
from minipaged.models.quantization import Codes
from minipaged.models.weights import load_weights
from minipaged.ops import choose_ops
from minipaged.parallel.place import Layout
from minipaged.sampling_params import SamplingParams
from tests.parallel.crew import places
from tests.tiny import tiny_model

CPU = torch.device("cpu")
WAYS = ("int8", "int4", "fp8")
SHAPE = {"intermediate_size": 64, "tie_word_embeddings": True}  # whole groups of 32, also for each of two ranks
ENGINES = {
    1: {"num_blocks": 64, "block_size": 4},
    2: {"num_blocks": 10, "block_size": 4},
    3: {"num_blocks": 12, "block_size": 3, "max_num_batched_tokens": 5, "long_prefill_token_threshold": 3},
    4: {"num_blocks": 12, "block_size": 3, "max_num_batched_tokens": 7},
    5: {"num_blocks": 64, "block_size": 4, "num_speculative_tokens": 3},
    6: {"num_blocks": 10, "block_size": 4, "num_speculative_tokens": 2},
}
PROMPTS = [[7, 8, 9, 7, 8, 9, 7], [3], [11] * 15, list(range(20, 44))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("tiny"), **SHAPE)


def build(folder, way, place=None, products=None):
    ops = choose_ops("torch", torch.float32, CPU)
    if way == "fp8":  # which no CPU has: here its specification multiplies
        ops = ops._replace(linear_int8=linear_int8_spec)
    if products:
        ops = ops._replace(linear_int8=products[0], linear_int4=products[1])
    model = Decoder(read_model_config(folder), ops, torch.float32, CPU, place, way)
    load_weights(model, folder)
    return model


def decode(memory):
    """The weights that codes stand for."""
    if len(memory.parts) == 3:
        return unpack_spec(*memory.parts)
    codes, scale = memory.parts
    return codes.float() * scale[:, None]


@torch.inference_mode()
def read(model, token_ids):
    """Logits [T, V]."""
    model.pack()
    one = list(range(len(token_ids)))
    batch = Batch(token_ids, one, one, [0, len(one)], [len(one)], [[0]], one, [0, len(one)], [], [])
    return model(to_device(batch, CPU), KVCache(1, len(one), model.portion, model.config.head_dim, torch.float32, CPU))


@pytest.mark.parametrize("way", WAYS)
def test_it_is_the_model_of_the_weights_that_its_codes_stand_for(tmp_path, folder, way):
    kept = build(folder, way)
    tensors = load_file(folder / "model.safetensors")
    for name, (memory, _) in kept.checkpoint().items():
        if isinstance(memory, Codes):
            error = (decode(memory) - tensors[name]).norm() / tensors[name].norm()
            assert error < {"int8": 0.01, "int4": 0.1, "fp8": 0.04}[way], name
            tensors[name] = decode(memory)
        else:
            assert name.endswith("norm.weight")
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    expected = read(build(tmp_path, "none"), PROMPTS[3])
    torch.testing.assert_close(read(kept, PROMPTS[3]), expected, rtol=2e-3, atol=2e-3 * float(expected.abs().max()))


@pytest.mark.parametrize(("way", "bits", "row_bytes"), [("int8", 8, 4), ("fp8", 8, 4), ("int4", 6, 0)])
def test_as_many_bytes_as_it_says(folder, way, bits, row_bytes):
    """int4's words are int8; each group of its layers has 32 bits for its scale, and 32 for its lowest."""
    pieces = build(folder, way).checkpoint()
    expected = 0
    for name, tensor in load_file(folder / "model.safetensors").items():
        if tensor.dim() == 1:
            expected += 4 * tensor.numel()
        elif "embed" in name:
            expected += tensor.numel() + 4 * len(tensor)
        else:
            expected += tensor.numel() * bits // 8 + row_bytes * len(tensor)
    assert build(folder, way).num_weight_bytes == expected == sum(memory.nbytes for memory, _ in pieces.values())
    model = load_model(EngineConfig(model=str(folder), quantization=way if way != "fp8" else "int8"))
    assert way == "fp8" or model.model.num_weight_bytes == expected


@pytest.mark.parametrize("way", WAYS)
def test_a_tied_head_is_the_embedding_also_where_the_file_repeats_it(tmp_path, way):
    folder = tiny_model(tmp_path, **SHAPE)
    model = build(folder, way)
    assert model.exit.lm_head.weight is model.entrance.weight
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, folder / "model.safetensors")
    assert all(map(torch.equal, build(folder, way).entrance.weight.parts, model.entrance.weight.parts))
    tensors["lm_head.weight"][5, 0] += 1
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ValueError, match=r"lm_head.weight in .* is not the embedding"):
        build(folder, way)


@pytest.mark.parametrize("way", ["int8", "fp8"])
def test_the_codes_of_all_ranks_are_those_of_one(folder, way):
    """Also of matrices of which each has some columns: a scale is that of the whole row."""
    whole = build(folder, way).checkpoint()
    for place in places(Layout(2, 2)):
        for name, (memory, part) in build(folder, way, place=place).checkpoint().items():
            if isinstance(memory, Codes):
                codes, scale = whole[name].memory.parts
                mine = [codes.view(torch.uint8)[part], scale[part[:1]]]
                assert all(map(torch.equal, [memory.parts[0].view(torch.uint8), memory.parts[1]], mine)), name


def test_at_no_time_are_two_tensors_there_in_float32(folder, monkeypatch):
    seen, real = [], quantization.quantize_int8

    def quantize(rows):
        assert not any(earlier() is not None for earlier in seen), "an earlier tensor is still there"
        seen.append(weakref.ref(rows))
        return real(rows)

    monkeypatch.setattr(quantization, "quantize_int8", quantize)
    build(folder, "int8")
    assert len(seen) == 1 + 2 * 7  # words, and in each of two layers q, k, v, o, gate, up, down


@pytest.mark.parametrize("way", ["int8", "int4"])
def test_every_level_says_what_level_01_says(folder, way):
    model = load_model(EngineConfig(model=str(folder), quantization=way))
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    said = {}
    for level, fields in ENGINES.items():
        engine = load_level(level).Engine(EngineConfig(max_model_len=40, **fields), model)
        assert engine.config.quantization == way
        ids, answers = [engine.add_request(prompt, params) for prompt in PROMPTS], {}
        while engine.has_unfinished_requests():
            answers.update({output.request_id: output.outputs[0].token_ids for output in engine.step()})
        said[level] = [answers[i] for i in ids]
    assert all(answers == said[1] for answers in said.values()), said


@pytest.mark.parametrize("way", ["int8", "int4"])
def test_dummy_weights_are_kept_in_codes_too(folder, way):
    model = load_model(EngineConfig(model=str(folder), quantization=way, load_format="dummy"))
    memory = model.model.layers[0].mlp.down_proj.linear.weight
    assert 0.015 < decode(memory).std() < 0.025


def test_a_draft_model_is_kept_as_its_target_is(folder):
    fields = {"num_speculative_tokens": 2, "speculative_method": "draft_model", "draft_model": str(folder)}
    model = load_model(EngineConfig(model=str(folder), quantization="int8", **fields))
    [draft] = model.drafts.values()
    assert isinstance(draft.model.entrance.weight, Codes)


def test_the_kernels_of_triton_multiply_codes_too(tmp_path):
    """In the interpreter: what the model gives them is what they expect."""
    folder = tiny_model(tmp_path, num_hidden_layers=1, **SHAPE)
    for way in WAYS:
        expected = read(build(folder, way), PROMPTS[0][:2])
        actual = read(build(folder, way, products=(linear_int8, linear_int4)), PROMPTS[0][:2])
        torch.testing.assert_close(actual, expected, rtol=2e-3, atol=2e-3 * float(expected.abs().max()))


def test_what_cannot_be_kept_so_is_refused_in_a_sentence(tmp_path):
    folder = str(tiny_model(tmp_path / "odd"))  # 48 features
    with pytest.raises(ValueError, match="quantization int4 keeps groups of 32 inputs, and here a matrix has 48"):
        load_model(EngineConfig(model=folder, quantization="int4"))
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match=r"quantization fp8 needs an NVIDIA GPU .* this is a CPU"):
            load_model(EngineConfig(model=folder, quantization="fp8"))
    moe = str(tiny_model(tmp_path / "moe", "mixtral"))
    with pytest.raises(ValueError, match="quantization int8 is not built for a mixture of experts"):
        load_model(EngineConfig(model=moe, quantization="int8"))
    with pytest.raises(ValueError, match="quantization must be one of none, int8, int4, fp8, not 'int7'"):
        EngineConfig(quantization="int7")


def test_ranks_whose_inputs_begin_within_a_group_are_refused(tmp_path):
    folder = tiny_model(
        tmp_path, hidden_size=96, num_attention_heads=6, num_key_value_heads=6
    )  # 96 inputs: 48 for each of two
    with pytest.raises(ValueError, match="keeps groups of 32 inputs, and here a matrix has 48"):
        build(folder, "int4", place=places(Layout(2))[1])


def test_it_is_a_flag_of_every_level():
    assert make_parser(1, "01_basic", "", {}).parse_args(["--quantization", "int8"]).quantization == "int8"
