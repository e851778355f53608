"""A Hugging Face folder as the one file that llama.cpp reads, its matrices in 32, 16, 8 or 4 bits.

    f32    as they are          q8_0   groups of 32 weights: a scale, and 8 bits each
    f16    16 bits each         q4_1   a scale, a least value, and 4 bits each; embeddings in q8_0, as in such files

Made once, beside the environments, and used again as long as the folder's weights do not change. Norms stay float32. A
Llama without biases is all that is needed here. As a program, `python -m benchmarks.peers.gguf_files FOLDER KIND`."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, TokenType, quantize
from safetensors.numpy import load_file

from .environments import converted

KINDS = {kind: GGMLQuantizationType[kind.upper()] for kind in ("f32", "f16", "q8_0", "q4_1")}
FILE_TYPES = {"f32": 0, "f16": 1, "q4_1": 3, "q8_0": 7}  # what most of it is, in llama.cpp's count
NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}


def main(folder: Path, kind: str) -> None:
    """Make the file of this kind, unless it is there. Raises ValueError for a model of another architecture."""
    path = converted(folder, f"{kind}.gguf")
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write_gguf(folder, kind, partial)
        partial.rename(path)
    finally:
        partial.unlink(missing_ok=True)


def write_gguf(folder: Path, kind: str, target: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    if config["model_type"] != "llama" or config.get("attention_bias") or config.get("mlp_bias"):
        raise ValueError(f"{folder}: only a Llama without biases is written as GGUF here")
    writer = GGUFWriter(target, "llama")
    writer.add_file_type(FILE_TYPES[kind])
    write_numbers(writer, config)
    write_vocabulary(writer, folder, config)
    for name, weight in load_file(folder / "model.safetensors").items():
        add_tensor(writer, name, weight, kind, config)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_numbers(writer: Any, config: dict[str, Any]) -> None:
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])


def write_vocabulary(writer: Any, folder: Path, config: dict[str, Any]) -> None:
    """Nobody here reads a text, but a reader may refuse a file that has no words."""
    if not (folder / "tokenizer.json").exists():
        writer.add_tokenizer_model("no_vocab")
        return
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    special = {token["id"] for token in tokenizer["added_tokens"] if token["special"]}
    tokens = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].get)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.CONTROL if i in special else TokenType.NORMAL for i in range(len(tokens))])
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])


def add_tensor(writer: Any, name: str, weight: Any, kind: str, config: dict[str, Any]) -> None:
    part = name.removesuffix(".weight")
    if part == "lm_head" and config["tie_word_embeddings"]:
        return
    layer = ""
    if part.startswith("model.layers."):
        _, _, number, part = part.split(".", 3)
        layer = f"blk.{number}."
    heads = {"self_attn.q_proj": config["num_attention_heads"], "self_attn.k_proj": config["num_key_value_heads"]}
    if part in heads:
        weight = side_by_side(weight, heads[part])
    wanted = KINDS["f32"] if weight.ndim == 1 else KINDS["q8_0" if kind == "q4_1" and not layer else kind]
    writer.add_tensor(f"{layer}{NAMES[part]}.weight", quantize(weight, wanted), raw_dtype=wanted)


def side_by_side(weight: Any, num_heads: int) -> Any:
    """Rows of each head from rotary pairs half a head apart to pairs side by side; weight [H D, M]."""
    halves = weight.reshape(num_heads, 2, -1, weight.shape[1])  # [H, 2, D/2, M]
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(weight.shape)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
