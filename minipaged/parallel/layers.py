"""A product can be split by its outputs, or by its inputs and then added up; one behind the other, they need one sum.

    x [T, M] --columns--> this rank's part of [T, F] --rows--> a summand of y [T, M] --all-reduce--> y

    A = [A0 | A1],  B = [B0 / B1]:       f(x A) B  =  f(x A0) B0  +  f(x A1) B1
                                                       rank 0         rank 1

Nothing is said between the two: attention keeps heads apart, an MLP's gate works feature by feature. So a layer has two
all-reduces, one behind attention and one behind the MLP (Megatron-LM, arXiv 1909.08053). A checkpoint holds matrices as
[outputs, inputs]: the columns of the formula are rows there. Words are split like outputs. Whoever has a word's row
looks it up, the others add zero; logits are laid side by side on the rank that answers, and those of the padding cut
off there, before anything is drawn.

Invariants: a bias is added once, by rank 0; in a group of one all this is the plain product. (From level 06.)"""

from typing import NamedTuple

import torch
from torch import Tensor

from ..input_batch import InputBatch
from ..models.linear import Linear
from ..models.quantization import PLAIN, Matrix, Part, Scheme, Schemes, Sliceable, fill
from ..ops import Ops
from .groups import Alone, Group
from .portion import Portion

ALL = (slice(None),)


class Piece(NamedTuple):
    """Memory of this rank, and the part of a checkpoint tensor that fills it."""

    memory: Matrix
    part: Part = ALL

    def fill(self, whole: Sliceable) -> None:
        """whole: the checkpoint's tensor."""
        if self.memory.numel():
            fill(self.memory, whole, self.part)


Pieces = dict[str, Piece]  # by the name that the whole tensor has in a checkpoint


class Build(NamedTuple):
    """What all parts of a rank's model are made with."""

    ops: Ops
    dtype: torch.dtype
    device: torch.device
    portion: Portion
    group: Group  # with whom the other slices are
    experts: Group = Alone()  # with whom the other experts are; alone, a rank has its slice of all
    num_redundant: int = 0  # slots for second copies of experts
    schemes: Schemes = Schemes(PLAIN, PLAIN)  # how matrices are kept

    def empty(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=self.dtype, device=self.device)

    def linear(self, outputs: int, inputs: int, *, bias: bool, scheme: Scheme | None = None) -> Linear:
        """Kept as the layers' matrices are, unless another scheme is given."""
        kept = scheme or self.schemes.layers
        return Linear(outputs, inputs, bias=bias, dtype=self.dtype, device=self.device, scheme=kept)


class ColumnLinear:
    """Several matrices that read the same x, stacked; of each, this rank has some outputs."""

    def __init__(self, parts: dict[str, range], inputs: int, *, bias: bool, build: Build):
        self.parts, self.linear = parts, build.linear(sum(map(len, parts.values())), inputs, bias=bias)

    def __call__(self, x: Tensor) -> Tensor:
        """x [T, inputs] -> [T, this rank's outputs of all parts]"""
        return self.linear(x)

    def checkpoint(self, name: str) -> Pieces:
        pieces, start = Pieces(), 0
        for part, share in self.parts.items():
            rows, index = slice(start, start + len(share)), (slice(share.start, share.stop),)
            pieces[f"{name}.{part}.weight"] = Piece(self.linear.weight[rows], index)
            if self.linear.bias is not None:
                pieces[f"{name}.{part}.bias"] = Piece(self.linear.bias[rows], index)
            start = rows.stop
        return pieces

    def pack(self) -> None:
        self.linear.pack()


class RowLinear:
    """A matrix of which this rank has some inputs; the sum over all ranks is what comes out."""

    def __init__(self, outputs: int, inputs: range, *, bias: bool, build: Build):
        self.inputs, self.group = inputs, build.group
        self.linear = build.linear(outputs, len(inputs), bias=bias and self.group.rank == 0)

    def __call__(self, x: Tensor) -> Tensor:
        """x [T, this rank's inputs] -> [T, outputs], the same on all ranks"""
        return self.group.all_reduce(self.linear(x))

    def checkpoint(self, name: str) -> Pieces:
        index = (slice(None), slice(self.inputs.start, self.inputs.stop))
        pieces = {f"{name}.weight": Piece(self.linear.weight, index)}
        return pieces if self.linear.bias is None else pieces | {f"{name}.bias": Piece(self.linear.bias)}

    def pack(self) -> None:
        self.linear.pack()


class Embedding:
    """A row for every word."""

    def __init__(self, vocab_size: int, hidden_size: int, build: Build):
        self.scheme, self.dtype = build.schemes.words, build.dtype
        self.weight = self.scheme.make(vocab_size, hidden_size, build.dtype, build.device)

    def __call__(self, batch: InputBatch) -> Tensor:
        """[T, M]"""
        return self.scheme.look_up(self.weight, batch.token_ids, self.dtype)

    def checkpoint(self, name: str) -> Pieces:
        return {name: Piece(self.weight)}


class SplitEmbedding:
    """Rows for this rank's words; the other ranks have the others."""

    def __init__(self, vocab_size: int, hidden_size: int, build: Build):
        self.share, self.group = build.portion.vocabulary, build.group
        self.scheme, self.dtype, self.vocab_size = build.schemes.words, build.dtype, vocab_size
        table = self.scheme.make(len(self.share), hidden_size, build.dtype, build.device)
        self.weight = pad_words(table, self.share, vocab_size)

    def __call__(self, batch: InputBatch) -> Tensor:
        """[T, M], the same on all ranks"""
        rows = batch.token_ids - self.share.start
        elsewhere = (rows < 0) | (rows >= len(self.share))
        x = self.scheme.look_up(self.weight, rows.masked_fill(elsewhere, 0), self.dtype)
        return self.group.all_reduce(x.masked_fill_(elsewhere[:, None], 0))

    def checkpoint(self, name: str) -> Pieces:
        return {name: words(self.weight, self.share, self.vocab_size)}


def words(weight: Matrix, share: range, vocab_size: int) -> Piece:
    """The rows of weight [share, M] that are words and not padding."""
    end = min(share.stop, vocab_size)
    return Piece(weight[: max(0, end - share.start)], (slice(share.start, end),))


def pad_words(weight: Matrix, share: range, vocab_size: int) -> Matrix:
    """weight [share, M], with zeros where there is no word; codes begin as such."""
    if isinstance(weight, Tensor):
        weight[max(0, vocab_size - share.start) :] = 0
    return weight
