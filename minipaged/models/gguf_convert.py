"""One GGUF file holds everything a model is; a Hugging Face folder says the same in several files.

    GGUF (Llama architecture, byte-level BPE)              folder
    ---------------------------------------------------    -----------------------------------------------
    llama.*              numbers of the architecture   ->  config.json
    tokenizer.ggml.*     tokens, their kinds, merges   ->  tokenizer.json, tokenizer_config.json
    tokenizer.ggml.*_id  begin, end, padding           ->  generation_config.json
    tokenizer.chat_template                            ->  chat_template.jinja
    tensors              4- and 8-bit groups           ->  model.safetensors, float32          (convert)
                                                       or  where they are in the file itself   (describe)

The folder is the same model either way: what convert writes is what reading the file gives (`gguf_tensors.py`).
transformers is not used to load it: it would want one more package, and does not split digits as this tokenizer was
trained to. Invariant: what is not understood is refused by the file and the name of the field or tensor: of llama.* and
tokenizer.ggml.* every field that nothing here asks for (general.* and quantize.* change nothing). Deliberately missing:
every other architecture and tokenizer. (From level 01.)"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from shutil import copymode
from typing import Any

import numpy as np
from gguf import GGUFReader
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from .gguf_tensors import NAMES, TYPES, Entry, GgufTensors, find_index

CONTROL = 3  # the kind of token that a GGUF file gives <|im_end|> and its like
TENSOR = re.compile(r"(blk\.(?P<layer>\d+)\.)?(?P<part>\w+)\.weight")  # blk.3.attn_q.weight
ROTARY = {"attn_q": "llama.attention.head_count", "attn_k": "llama.attention.head_count_kv"}
KIND = {"general.architecture": "llama", "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm"}
# what may be there, as long as it says that nothing is done
INERT: dict[str, tuple[Any, ...]] = {
    "llama.rope.scaling.type": ("none",),
    "llama.rope.scaling.factor": (0, 1),
    "llama.rope.scale_linear": (0, 1),
    "llama.attention.sliding_window": (0,),
    "llama.attention.causal": (True,),
    "llama.expert_count": (0,),
    "llama.expert_used_count": (0,),
    "tokenizer.ggml.add_bos_token": (False,),
    "tokenizer.ggml.add_eos_token": (False,),
    "tokenizer.ggml.add_space_prefix": (False,),
}
HEAD_DIM = "llama.rope.dimension_count"
THE_SAME = ("llama.attention.key_length", "llama.attention.value_length")  # where they are given
UNUSED = {"tokenizer.ggml.scores"}  # byte-level BPE goes by its merges
NAMESPACES = ("llama.", "tokenizer.ggml.")


class Metadata(dict[str, Any]):
    """A file's fields, and which of them were asked for. Raises ValueError for one that is needed and not there."""

    def __init__(self, path: Path, fields: dict[str, Any]):
        super().__init__(fields)
        self.path, self.asked = path, set[str]()

    def __getitem__(self, field: str) -> Any:
        self.asked.add(field)
        return super().__getitem__(field)

    def __missing__(self, field: str) -> Any:
        raise ValueError(f"{self.path}: {field} is missing")


def describe(gguf_path: Path, folder: Path) -> None:
    """Write everything but the weights into `folder`, which exists, and where those are in a model.gguf beside it."""
    _write_json(find_index(folder / "model.gguf"), _write_words(gguf_path, folder))


def convert(gguf_path: Path, folder: Path, show: Callable[[int], None]) -> None:
    """Write the model in gguf_path as float32 into `folder`, which exists; show(bytes) is called as tensors come."""
    index = _write_words(gguf_path, folder)
    _save(_read_tensors(GgufTensors(gguf_path, index), show), folder / "model.safetensors")
    copymode(folder / "config.json", folder / "model.safetensors")  # which safetensors lets only its owner read


def _write_words(gguf_path: Path, folder: Path) -> dict[str, Entry]:
    """The configs, tokenizer and template; returns where each tensor is."""
    reader = _open(gguf_path)
    metadata = Metadata(gguf_path, {name: field.contents() for name, field in reader.fields.items()})
    _check_supported(metadata)
    index = dict(_find_tensor(tensor, metadata) for tensor in reader.tensors)
    _write_json(folder / "config.json", _config(metadata, tied="lm_head.weight" not in index))
    _write_json(folder / "generation_config.json", _special_ids(metadata))
    (folder / "tokenizer.json").write_text(_tokenizer(metadata).to_str(), encoding="utf-8")
    _write_json(folder / "tokenizer_config.json", _tokenizer_config(metadata))
    (folder / "chat_template.jinja").write_text(metadata["tokenizer.chat_template"], encoding="utf-8")
    _refuse_the_rest(metadata)
    return index


def _open(gguf_path: Path) -> Any:
    try:
        reader: Any = GGUFReader(gguf_path)
    except (ValueError, LookupError, OSError) as error:  # what bytes that are no GGUF file, or half of one, lead to
        raise ValueError(f"{gguf_path} cannot be read as a GGUF file: {error}") from error
    if reader.byte_order != "I":
        raise ValueError(f"{gguf_path} has the byte order of another kind of machine")
    return reader


def _check_supported(metadata: Metadata) -> None:
    for field, value in KIND.items():
        _check(metadata, field, metadata.get(field), (value,))
    for field, values in (INERT | dict.fromkeys(THE_SAME, (metadata[HEAD_DIM],))).items():
        if field in metadata:
            _check(metadata, field, metadata[field], values)


def _check(metadata: Metadata, field: str, found: Any, values: tuple[Any, ...]) -> None:
    if found not in values:
        raise ValueError(f"{metadata.path}: {field} is {found!r}, only {' or '.join(map(repr, values))} can be read")


def _refuse_the_rest(metadata: Metadata) -> None:
    """Whatever would change the model and was not asked for."""
    fields = metadata.keys() - metadata.asked - KIND.keys() - UNUSED
    if unknown := sorted(field for field in fields if field.startswith(NAMESPACES)):
        raise ValueError(f"{metadata.path}: fields that are not understood: {', '.join(unknown)}")


def _find_tensor(tensor: Any, metadata: Metadata) -> tuple[str, Entry]:
    """Its name in a Hugging Face folder, and where it is."""
    found = TENSOR.fullmatch(tensor.name)
    if found is None or (part := found["part"]) not in NAMES:
        raise ValueError(f"{metadata.path}: tensor {tensor.name} is unknown")
    if (written := tensor.tensor_type.name) not in TYPES:
        raise ValueError(f"{metadata.path}: tensor {tensor.name} is {written}; what can be read is {', '.join(TYPES)}")
    prefix = f"model.layers.{found['layer']}." if found["layer"] else ""
    num_heads = metadata[ROTARY[part]] if part in ROTARY else 0
    shape = [int(n) for n in reversed(tensor.shape)]
    entry = Entry(written, shape, int(tensor.data_offset), int(tensor.n_bytes), num_heads)
    return f"{prefix}{NAMES[part]}.weight", entry


def _read_tensors(file: GgufTensors, show: Callable[[int], None]) -> dict[str, NDArray[np.float32]]:
    tensors: dict[str, NDArray[np.float32]] = {}
    num_bytes = 0
    for name in file.keys():  # noqa: SIM118 (it is no dictionary)
        tensors[name] = file.get_slice(name).whole
        num_bytes += tensors[name].nbytes
        show(num_bytes)
    return tensors


def _save(tensors: dict[str, NDArray[np.float32]], path: Path) -> None:
    try:
        save_file(tensors, path, metadata={"format": "pt"})  # transformers asks for the mark
    except SafetensorError as error:  # its name for what every other writer calls an OSError: a full disk
        raise OSError(str(error)) from error


def _config(metadata: Metadata, *, tied: bool) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float32",
        "vocab_size": metadata["llama.vocab_size"],
        "hidden_size": metadata["llama.embedding_length"],
        "intermediate_size": metadata["llama.feed_forward_length"],
        "num_hidden_layers": metadata["llama.block_count"],
        "num_attention_heads": metadata["llama.attention.head_count"],
        "num_key_value_heads": metadata["llama.attention.head_count_kv"],
        "head_dim": metadata[HEAD_DIM],
        "max_position_embeddings": metadata["llama.context_length"],
        "rms_norm_eps": _shortest(metadata["llama.attention.layer_norm_rms_epsilon"]),
        "rope_parameters": {"rope_type": "default", "rope_theta": _shortest(metadata["llama.rope.freq_base"])},
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
    names = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding", "unk_token": "unknown"}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": metadata["llama.context_length"],
        "clean_up_tokenization_spaces": False,
        **{ours: _token(metadata, f"tokenizer.ggml.{theirs}_token_id") for ours, theirs in names.items()},
    }


def _token(metadata: Metadata, field: str) -> str:
    token_id, tokens = metadata[field], metadata["tokenizer.ggml.tokens"]
    if not 0 <= token_id < len(tokens):
        raise ValueError(f"{metadata.path}: {field} is {token_id}, and there are {len(tokens)} tokens")
    token: str = tokens[token_id]
    return token


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
