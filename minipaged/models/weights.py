"""A checkpoint is a dictionary, and so is the model: every name in the file has its slice of memory here.

    model.safetensors, or the shards that model.safetensors.index.json lists, or model.gguf (gguf_tensors.py)

    file                                     memory                            the second of two ranks takes
    model.layers.0.self_attn.q_proj.weight   qkv_proj rows 0 .. H D            rows H D / 2 .. H D
    model.layers.0.self_attn.k_proj.weight   qkv_proj rows H D .. (H + K) D    rows K D / 2 .. K D
    model.layers.0.self_attn.o_proj.weight   o_proj                            columns H D / 2 .. H D
    ...                                      ...

Files are mapped, not read: what a rank needs of a tensor is copied once, from the page cache into its place, and
converted on the way to the dtype asked for. Invariant: when loading ends every parameter was filled exactly once. A
missing, unknown, misshapen or damaged tensor or shard is refused, by the name it has in the file, before anything is
served; by every rank, whoever needs it. (From level 01.)"""

import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol, Self, cast

import torch
from safetensors import SafetensorError, safe_open

from ..ops import choose_ops
from ..parallel.layers import Pieces
from .config import ModelConfig, read_json
from .decoder import EMBEDDING, HEAD, Decoder
from .quantization import Sliceable

Shapes = dict[str, torch.Size]
NO_MEMORY = torch.device("meta")
FLOATS = ("F64", "F32", "F16", "BF16")


class Stored(Sliceable, Protocol):
    """A tensor that is in a file."""

    def get_shape(self) -> list[int]: ...
    def get_dtype(self) -> str: ...


class Shard(Protocol):
    """An open file of tensors."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *reason: object) -> None: ...
    def keys(self) -> list[str]: ...
    def get_slice(self, name: str, /) -> Stored: ...


def load_weights(model: Decoder, folder: Path) -> None:
    """Fill the model from a Hugging Face folder. Raises ValueError naming the tensor or file at fault."""
    shapes, shards = whole_shapes(model.config), find_shards(folder)
    found = {name: shard for shard, names in shards.items() for name in names}
    tied = {HEAD: shapes[EMBEDDING]} if model.config.tie_word_embeddings else {}
    refuse("missing", shapes.keys() - found.keys(), folder, shards)
    refuse("unknown", found.keys() - shapes.keys() - tied.keys(), folder, shards)
    pieces = model.checkpoint()
    for shard in shards:
        load_shard(shard, shapes | tied, pieces)
    if HEAD in tied.keys() & found.keys():
        check_tied_head(found, pieces)


def whole_shapes(config: ModelConfig) -> Shapes:
    """Every name that a checkpoint has to have, whichever rank needs it."""
    whole = Decoder(config, choose_ops("torch", torch.float32, NO_MEMORY), torch.float32, NO_MEMORY)
    return {name: piece.memory.shape for name, piece in whole.checkpoint().items()}


def find_shards(folder: Path) -> dict[Path, list[str]]:
    """Every file of the checkpoint, with the names in it."""
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if (folder / "model.gguf.index.json").exists():
        single = folder / "model.gguf"
    if single.exists() or not index.exists():
        return {single: list_tensors(single)}
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict):
        raise ValueError(f"{index} has no weight_map")
    shards = {folder / name: list_tensors(folder / name) for name in sorted(set(weight_map.values()))}
    listed = {(folder / shard, name) for name, shard in weight_map.items()}
    inside = {(shard, name) for shard, names in shards.items() for name in names}
    for shard, name in sorted(listed ^ inside):
        says, but = (index, shard) if (shard, name) in listed else (shard, index)
        raise ValueError(f"{name} is in {says.name} but not in {but.name} ({folder})")
    return shards


def list_tensors(shard: Path) -> list[str]:
    if not shard.exists():
        raise ValueError(f"{spell_names(shard, [])[0]} does not exist")
    try:
        with open_shard(shard) as file:
            return list(file.keys())
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{shard} is damaged: {error}") from None


def open_shard(shard: Path) -> Shard:
    if shard.suffix != ".gguf":
        return cast(Shard, safe_open(shard, framework="pt"))
    from .gguf_tensors import GgufTensors  # late: most checkpoints need no gguf

    return GgufTensors(shard)


def load_shard(shard: Path, shapes: Shapes, pieces: Pieces) -> None:
    with open_shard(shard) as file:
        for name in file.keys():  # noqa: SIM118 (it is no dictionary)
            tensor = file.get_slice(name)
            if tensor.get_shape() != list(shapes[name]):
                there, [spelled] = spell_names(shard, [name])
                raise ValueError(f"{spelled} in {there} has shape {tensor.get_shape()}, not {list(shapes[name])}")
            if tensor.get_dtype() not in FLOATS:
                raise ValueError(f"{name} in {shard} is {tensor.get_dtype()}, not a floating-point number")
            if name in pieces:
                pieces[name].fill(tensor)


def check_tied_head(found: dict[str, Path], pieces: Pieces) -> None:
    """A file may repeat a tied head, but not contradict it."""
    if EMBEDDING not in pieces or not pieces[EMBEDDING].memory.numel():
        return  # whoever has words will see it
    memory, part = pieces[EMBEDDING]
    with open_shard(found[HEAD]) as one, open_shard(found[EMBEDDING]) as other:
        head, embedding = (
            file.get_slice(name)[part].to(memory.dtype) for file, name in ((one, HEAD), (other, EMBEDDING))
        )
    if not torch.equal(head, embedding):
        raise ValueError(f"{HEAD} in {found[HEAD]} is not the embedding, to which config.json ties it")


def refuse(problem: str, names: Iterable[str], folder: Path, shards: Iterable[Path]) -> None:
    if names := sorted(names):
        more = f" and {len(names) - 5} more" if len(names) > 5 else ""
        there, shown = spell_names(next((shard for shard in shards if shard.suffix == ".gguf"), folder), names[:5])
        raise ValueError(f"{there}: {problem} in the checkpoint: {', '.join(shown)}{more}")


def spell_names(place: Path, names: list[str]) -> tuple[Path, list[str]]:
    """A checkpoint and its tensors as its owner knows them: of a GGUF file neither our link nor our names."""
    if place.is_dir() or place.suffix != ".gguf":
        return place, names
    from .gguf_tensors import spell

    return place.resolve(), [spell(name) for name in names]


def fill_with_noise(model: Decoder) -> None:
    """Dummy weights, made on the device: the right shapes at the right speed, and the same however they are split."""
    shapes = whole_shapes(model.config)
    for name, piece in model.checkpoint().items():
        whole = torch.ones(shapes[name], dtype=piece.memory.dtype, device=piece.memory.device)
        if not name.endswith("norm.weight"):
            whole.normal_(std=0.02, generator=torch.Generator(whole.device).manual_seed(zlib.crc32(name.encode())))
        piece.fill(whole)
