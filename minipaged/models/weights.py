"""A checkpoint is a dictionary, and so is the model: every name in the file has its slice of memory here.

    model.safetensors, or the shards that model.safetensors.index.json lists

    file                                     memory
    model.layers.0.self_attn.q_proj.weight   qkv_proj rows 0 .. H D
    model.layers.0.self_attn.k_proj.weight   qkv_proj rows H D .. (H + K) D
    ...                                      ...

Files are mapped, not read: each tensor is copied once, from the page cache into its place, and converted on the way to
the dtype asked for. Invariant: when loading ends every parameter was filled exactly once. A missing, unknown, misshapen
or damaged tensor or shard is refused, by the name it has in the file, before anything is served. (From level 01.)"""

from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from .config import read_json
from .decoder import Decoder

EMBEDDING, TIED_HEAD = "model.embed_tokens.weight", "lm_head.weight"


def load_weights(model: Decoder, folder: Path) -> None:
    """Fill the model from a Hugging Face folder. Raises ValueError naming the tensor or file at fault."""
    places, shards = model.checkpoint(), find_shards(folder)
    found = {name: shard for shard, names in shards.items() for name in names}
    tied = model.config.tie_word_embeddings
    refuse("missing", places.keys() - found.keys(), folder)
    refuse("unknown", found.keys() - places.keys() - ({TIED_HEAD} if tied else set()), folder)
    for shard, names in shards.items():
        load_shard(shard, names, places)
    if tied and TIED_HEAD in found:
        check_tied_head(found[TIED_HEAD], model.embedding)


def find_shards(folder: Path) -> dict[Path, list[str]]:
    """Every safetensors file of the checkpoint, with the names in it."""
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
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
        raise ValueError(f"{shard} does not exist")
    try:
        with safe_open(shard, framework="pt") as file:
            return list(file.keys())
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{shard} is damaged: {error}") from None


def load_shard(shard: Path, names: Iterable[str], places: dict[str, Tensor]) -> None:
    with safe_open(shard, framework="pt") as file:
        for name in names:
            tensor, place = file.get_tensor(name), places.get(name, places[EMBEDDING])
            if tensor.shape != place.shape:
                raise ValueError(f"{name} in {shard} has shape {list(tensor.shape)}, not {list(place.shape)}")
            if not tensor.is_floating_point():
                raise ValueError(f"{name} in {shard} is {tensor.dtype}, not a floating-point number")
            if name in places:
                place.copy_(tensor)


def check_tied_head(shard: Path, embedding: Tensor) -> None:
    """A file may repeat a tied head, but not contradict it."""
    with safe_open(shard, framework="pt") as file:
        if not torch.equal(file.get_tensor(TIED_HEAD).to(embedding.dtype), embedding):
            raise ValueError(f"{TIED_HEAD} in {shard} is not the embedding, to which config.json ties it")


def refuse(problem: str, names: Iterable[str], folder: Path) -> None:
    if names := sorted(names):
        more = f" and {len(names) - 5} more" if len(names) > 5 else ""
        raise ValueError(f"{folder}: {problem} in the checkpoint: {', '.join(names[:5])}{more}")


def fill_with_noise(model: Decoder) -> None:
    """Dummy weights, made on the device: the right shapes at the right speed, and always the same."""
    places = model.checkpoint()
    generator = torch.Generator(model.embedding.device).manual_seed(0)
    for name, place in places.items():
        if name.endswith("norm.weight"):
            place.fill_(1.0)
        else:
            place.normal_(std=0.02, generator=generator)
