"""One GGUF file holds everything a model is; a Hugging Face folder says the same in six files.

    GGUF (Llama architecture, byte-level BPE)              folder
    ---------------------------------------------------    -----------------------------------------------
    llama.*              numbers of the architecture   ->  config.json
    tokenizer.ggml.*     tokens, their kinds, merges   ->  tokenizer.json, tokenizer_config.json
    tokenizer.ggml.*_id  begin, end, padding           ->  generation_config.json
    tokenizer.chat_template                            ->  chat_template.jinja
    tensors              4- and 8-bit groups           ->  model.safetensors, float32

Dequantising is exact arithmetic (group scale times small integer, plus group minimum): the folder is the same model.
Two things are spelled differently in the two worlds. Names: blk.3.attn_q is model.layers.3.self_attn.q_proj.
And rotary pairs: a GGUF file keeps the two dimensions that turn together side by side, a Hugging Face model keeps them
half a head apart:

    GGUF   rows of a head   a0 b0 a1 b1 a2 b2 ...      ->      a0 a1 a2 ... b0 b1 b2 ...   Hugging Face

Invariant: the tensors are bit for bit those that transformers loads from the same file. It is not used to load it: it
would want one more package, and does not split digits as this tokenizer was trained to.
Deliberately missing: every other architecture and tokenizer, which are refused by name. (From level 01.)"""

import json
from collections.abc import Callable
from pathlib import Path
from shutil import copymode
from typing import Any

import numpy as np
from gguf import GGUFReader, dequantize
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

Metadata = dict[str, Any]

CONTROL = 3  # the kind of token that a GGUF file gives <|im_end|> and its like
NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def convert(gguf_path: Path, folder: Path, show: Callable[[int], None]) -> None:
    """Write the model in gguf_path as float32 into `folder`, which exists; show(bytes) is called as tensors come."""
    reader = GGUFReader(gguf_path)
    metadata = {name: field.contents() for name, field in reader.fields.items()}
    _check_supported(metadata, gguf_path)
    tensors = _tensors(reader, metadata, show)
    _save(tensors, folder / "model.safetensors")
    _write_json(folder / "config.json", _config(metadata, tied="lm_head.weight" not in tensors))
    _write_json(folder / "generation_config.json", _special_ids(metadata))
    (folder / "tokenizer.json").write_text(_tokenizer(metadata).to_str(), encoding="utf-8")
    _write_json(folder / "tokenizer_config.json", _tokenizer_config(metadata))
    (folder / "chat_template.jinja").write_text(metadata["tokenizer.chat_template"], encoding="utf-8")
    copymode(folder / "config.json", folder / "model.safetensors")  # which safetensors lets only its owner read


def _check_supported(metadata: Metadata, gguf_path: Path) -> None:
    expected = {"general.architecture": "llama", "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm"}
    for field, value in expected.items():
        if metadata.get(field) != value:
            raise ValueError(f"{gguf_path.name}: {field} is {metadata.get(field)!r}, only {value!r} can be converted")


def _tensors(reader: Any, metadata: Metadata, show: Callable[[int], None]) -> dict[str, NDArray[np.float32]]:
    """All tensors in float32, under the names and in the layout of a Hugging Face model."""
    num_heads = {"attn_q": metadata["llama.attention.head_count"], "attn_k": metadata["llama.attention.head_count_kv"]}
    tensors: dict[str, NDArray[np.float32]] = {}
    num_bytes = 0
    for tensor in reader.tensors:
        *layer, part, kind = tensor.name.split(".")  # blk.3.attn_q.weight, or output_norm.weight
        weight = dequantize(tensor.data, tensor.tensor_type)  # [out, in]
        if part in num_heads:
            weight = _halves(weight, num_heads[part])
        prefix = f"model.layers.{layer[1]}." if layer else ""
        tensors[f"{prefix}{NAMES[part]}.{kind}"] = weight
        num_bytes += weight.nbytes
        show(num_bytes)
    return tensors


def _save(tensors: dict[str, NDArray[np.float32]], path: Path) -> None:
    try:
        save_file(tensors, path, metadata={"format": "pt"})  # transformers asks for the mark
    except SafetensorError as error:  # its name for what every other writer calls an OSError: a full disk
        raise OSError(str(error)) from error


def _halves(weight: NDArray[np.float32], num_heads: int) -> NDArray[np.float32]:
    """Rows of each head from rotary pairs side by side to pairs half a head apart; weight [H*D, M]."""
    pairs = weight.reshape(num_heads, -1, 2, weight.shape[1])  # [H, D/2, 2, M]
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(weight.shape)  # [H*D, M]


def _config(metadata: Metadata, *, tied: bool) -> dict[str, Any]:
    llama = {name.removeprefix("llama."): value for name, value in metadata.items() if name.startswith("llama.")}
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float32",
        "vocab_size": llama["vocab_size"],
        "hidden_size": llama["embedding_length"],
        "intermediate_size": llama["feed_forward_length"],
        "num_hidden_layers": llama["block_count"],
        "num_attention_heads": llama["attention.head_count"],
        "num_key_value_heads": llama["attention.head_count_kv"],
        "head_dim": llama["rope.dimension_count"],
        "max_position_embeddings": llama["context_length"],
        "rms_norm_eps": _shortest(llama["attention.layer_norm_rms_epsilon"]),
        "rope_parameters": {"rope_type": "default", "rope_theta": _shortest(llama["rope.freq_base"])},
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": tied,
        **_special_ids(metadata),
    }


def _shortest(value: float) -> float:
    """1e-05 again, which the file's float32 turned into 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def _special_ids(metadata: Metadata) -> dict[str, int]:
    spelled = {"bos_token_id": "bos_token_id", "eos_token_id": "eos_token_id", "pad_token_id": "padding_token_id"}
    return {ours: metadata[f"tokenizer.ggml.{theirs}"] for ours, theirs in spelled.items()}


def _tokenizer(metadata: Metadata) -> Tokenizer:
    """Byte-level BPE in which a digit is always a token of its own (tokenizer.ggml.pre = smollm)."""
    tokens, kinds = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    digits, byte_level = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in control])
    return tokenizer


def _tokenizer_config(metadata: Metadata) -> dict[str, Any]:
    tokens = metadata["tokenizer.ggml.tokens"]
    names = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding", "unk_token": "unknown"}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": metadata["llama.context_length"],
        "clean_up_tokenization_spaces": False,
        **{ours: tokens[metadata[f"tokenizer.ggml.{theirs}_token_id"]] for ours, theirs in names.items()},
    }


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
