"""A GGUF file's weights stay in its 4- and 8-bit groups, and each tensor becomes float32 when it is read.

    model.gguf                     a file from elsewhere, or a link to it
    model.gguf.index.json          where in it each tensor is, under the name that it has in a Hugging Face folder

    blk.3.attn_q.weight, Q4_1  ->  model.layers.3.self_attn.q_proj.weight, float32  ->  whoever asked for it

To whoever fills a model this is a safetensors file like any other (`weights.py`). The file is mapped, and of a tensor
the rows that are asked for become float32 while they are asked for: never more than one tensor, and nothing on disk.
Dequantising is exact arithmetic (group scale times small integer, plus group minimum). Rotary pairs are spelled
differently in the two worlds: a GGUF file keeps the two dimensions that turn together side by side, a Hugging Face
model keeps them half a head apart, so that of such a tensor all rows are read for any:

    GGUF   rows of a head   a0 b0 a1 b1 a2 b2 ...      ->      a0 a1 a2 ... b0 b1 b2 ...   Hugging Face

The index spares every start going through a file's tokens, which takes gguf two seconds or three for the default
model's 49,152. Invariant: tensors are bit for bit those that transformers loads from the same file. (From level 01.)"""

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np
from gguf import GGMLQuantizationType, dequantize
from numpy.typing import NDArray

from .config import read_json

if TYPE_CHECKING:
    from torch import Tensor

TYPES = ("F32", "F16", "BF16", "Q8_0", "Q5_0", "Q5_1", "Q4_0", "Q4_1", "Q6_K", "Q5_K", "Q4_K", "Q3_K", "Q2_K")
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
ROWS = 1024  # that become float32 at a time: what this needs beside its result


class Entry(NamedTuple):
    """Where a tensor is, and how it is written. num_heads: its rows are rotary pairs of so many; 0: they are not."""

    type: str
    shape: list[int]
    start: int
    num_bytes: int
    num_heads: int


class GgufTensors:
    """An open file, of which `index` says what is where; without one: the index beside it.

    Raises ValueError if the file is shorter than that."""

    def __init__(self, path: Path, index: dict[str, Entry] | None = None):
        listed = (
            {name: Entry(*entry) for name, entry in read_json(find_index(path)).items()} if index is None else index
        )
        self.index, self.bytes = listed, np.memmap(path, mode="r")
        end = max((entry.start + entry.num_bytes for entry in listed.values()), default=0)
        if len(self.bytes) < end:
            raise ValueError(f"{path.resolve()} is damaged: it has {len(self.bytes)} bytes, its index needs {end}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *reason: object) -> None:
        del self.bytes

    def keys(self) -> list[str]:
        return list(self.index)

    def get_slice(self, name: str) -> "GgufTensor":
        entry = self.index[name]
        return GgufTensor(self.bytes[entry.start : entry.start + entry.num_bytes], entry)


class GgufTensor:
    """A tensor that is in a file."""

    def __init__(self, data: NDArray[np.uint8], entry: Entry):
        self.entry = entry
        self.rows = data.reshape(entry.shape[0] if len(entry.shape) > 1 else 1, -1)  # [N, bytes of a row]

    def get_shape(self) -> list[int]:
        return self.entry.shape

    def get_dtype(self) -> str:
        """What it is read as."""
        return "F32"

    def __getitem__(self, part: tuple[slice, ...]) -> "Tensor":
        """Rows, or rows and columns."""
        from torch import from_numpy  # late: who only writes a folder needs none

        if self.entry.num_heads or len(self.rows) == 1:  # rows that change places, or a vector
            return from_numpy(self.whole)[part]
        return from_numpy(self.read(part[0]))[(slice(None), *part[1:])]

    @cached_property
    def whole(self) -> NDArray[np.float32]:
        weight = self.read(slice(None)).reshape(self.entry.shape)
        return halves(weight, self.entry.num_heads) if self.entry.num_heads else weight

    def read(self, rows: slice) -> NDArray[np.float32]:
        """Some rows as they stand in the file, in float32."""
        data, kind = self.rows[rows], GGMLQuantizationType[self.entry.type]
        weight = np.empty((len(data), self.entry.shape[-1]), np.float32)
        for start in range(0, len(data), ROWS):
            weight[start : start + ROWS] = dequantize(data[start : start + ROWS], kind)
        return weight


def spell(name: str) -> str:
    """model.layers.3.self_attn.q_proj.weight -> blk.3.attn_q.weight, as the file has it."""
    part, layer = name.removesuffix(".weight"), ""
    if part.startswith("model.layers."):
        number, _, part = part.removeprefix("model.layers.").partition(".")
        layer = f"blk.{number}."
    return f"{layer}{next(ours for ours, theirs in NAMES.items() if theirs == part)}.weight"


def find_index(path: Path) -> Path:
    return path.with_name(f"{path.name}.index.json")


def halves(weight: NDArray[np.float32], num_heads: int) -> NDArray[np.float32]:
    """Rows of each head from rotary pairs side by side to pairs half a head apart; weight [H*D, M]."""
    pairs = weight.reshape(num_heads, -1, 2, weight.shape[1])  # [H, D/2, 2, M]
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(weight.shape)  # [H*D, M]
