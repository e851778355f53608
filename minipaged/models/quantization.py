"""A weight matrix may be kept in fewer bits. Which, is chosen once, where the model is put together.

    --quantization   layers' matrices                 words (embedding, head)   bits a weight    where
    none             as they are                      as they are               32 or 16         everywhere
    int8             8 bits, a scale for each row     the same                  8                everywhere
    fp8              floats of 8 bits, the same       the same                  8                GPUs that have them
    int4             4 bits, a grid for each 32       int8                      5, on a CPU 6    everywhere

    file             [ q_proj ]  ->  codes, scales  ->  their place         some rows after the others, so that little
                     [ k_proj ]  ->  codes, scales  ->  their place         of a large tensor is there in float32
    a rank           some columns of whole rows' codes                      so all ranks together have one model's codes

Whole, one at a time, are there only dummy weights and a GGUF file's q_proj and k_proj, whose rows change places.
Norms and biases stay what they are, and so does x: arithmetic is that of the dtype asked for (what a CPU makes of it:
kernels/linear_int8.py). A tied embedding is kept once, for both its uses. Invariant: whoever makes, fills or multiplies
a matrix asks its scheme, and nobody asks which scheme that is; but fused_layer.py, whether one call knows it. (Any
level.)"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol, cast

import torch
from torch import Tensor
from torch.nn.functional import linear

from ..kernels.linear_int4 import GROUP, quantize_int4, unpack_spec
from ..kernels.linear_int8 import quantize_fp8, quantize_int8
from ..ops import Ops
from .config import ModelConfig

ROWS = 1024  # that are there in float32 while they become codes
Part = tuple[slice, ...]  # of a tensor: rows, or rows and columns


class Sliceable(Protocol):
    """A tensor, or one that is in a file."""

    def __getitem__(self, part: Part, /) -> Tensor: ...


class Codes:
    """Codes [N, ...] for the weights [N, K] of a matrix, and what else is needed to read them, row by row.

    All zeros, which is the matrix of zeros, until it is filled."""

    def __init__(self, shape: torch.Size, dtype: torch.dtype, quantize: "Quantize", *parts: Tensor):
        self.shape, self.dtype, self.quantize, self.parts = shape, dtype, quantize, parts

    def __getitem__(self, rows: slice) -> "Codes":
        """The same memory."""
        parts = [part[rows] for part in self.parts]
        return Codes(torch.Size((len(parts[0]), self.shape[1])), self.dtype, self.quantize, *parts)

    def fill(self, whole: Sliceable, part: Part) -> None:
        """The part of a whole matrix [outputs, inputs] that belongs here, with the scales of whole rows."""
        columns, begin = part[1] if len(part) > 1 else slice(None), part[0].start or 0
        for start in range(0, len(self.parts[0]), ROWS):
            here = self[start : start + ROWS]
            rows = whole[(slice(begin + start, begin + start + len(here.parts[0])),)]
            for memory, new in zip(here.parts, self.quantize(rows.to(self.device), columns), strict=True):
                memory.copy_(new)

    @property
    def device(self) -> torch.device:
        return self.parts[0].device

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    def numel(self) -> int:
        return self.shape.numel()


Matrix = Tensor | Codes
Multiply = Callable[[Tensor, Matrix, Tensor | None], Tensor]
Quantize = Callable[[Tensor, slice], tuple[Tensor, ...]]  # whole rows, columns to keep -> the parts of those


class Scheme(NamedTuple):
    """How a matrix is kept, and what that means for whoever needs it."""

    make: Callable[[int, int, torch.dtype, torch.device], Matrix]  # outputs, inputs -> uninitialised, or zeros
    multiply: Multiply  # x [T, K], weight, bias [N] -> [T, N]
    look_up: Callable[[Matrix, Tensor, torch.dtype], Tensor]  # weight, ids [T] -> rows [T, K]


class Schemes(NamedTuple):
    layers: Scheme
    words: Scheme  # the embedding, and the head


def choose_schemes(quantization: str, config: ModelConfig, ops: Ops) -> Schemes:
    """Raises ValueError for a model that cannot be kept in this way."""
    if quantization == "none":
        return Schemes(PLAIN, PLAIN)
    if any(config.experts):
        raise ValueError(f"quantization {quantization} is not built for a mixture of experts: leave it out")
    product = partial(multiply_codes, ops.linear_int8)  # what a byte means, its dtype says
    int8 = Scheme(partial(make_rows, torch.int8, quantize_rows), product, look_up_rows)
    fp8 = Scheme(partial(make_rows, torch.float8_e4m3fn, quantize_floats), product, look_up_rows)
    int4 = Scheme(make_groups, partial(multiply_codes, ops.linear_int4), look_up_groups)
    return {"int8": Schemes(int8, int8), "fp8": Schemes(fp8, fp8), "int4": Schemes(int4, int8)}[quantization]


def make_plain(outputs: int, inputs: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.empty(outputs, inputs, dtype=dtype, device=device)


def look_up_plain(weight: Matrix, ids: Tensor, dtype: torch.dtype) -> Tensor:
    assert isinstance(weight, Tensor)
    return weight[ids]


PLAIN = Scheme(make_plain, cast("Multiply", linear), look_up_plain)


def multiply_codes(product: Callable[..., Tensor], x: Tensor, weight: Matrix, bias: Tensor | None) -> Tensor:
    """The kernels know no bias."""
    y = product(x, *list_tensors(weight))
    return y if bias is None else y + bias


def make_rows(
    kept: torch.dtype, quantize: Quantize, outputs: int, inputs: int, dtype: torch.dtype, device: torch.device
) -> Codes:
    codes, scale = torch.zeros(outputs, inputs, dtype=kept, device=device), torch.zeros(outputs, device=device)
    return Codes(codes.shape, dtype, quantize, codes, scale)


def quantize_rows(rows: Tensor, columns: slice) -> tuple[Tensor, Tensor]:
    codes, scale = quantize_int8(rows)
    return codes[:, columns], scale


def quantize_floats(rows: Tensor, columns: slice) -> tuple[Tensor, Tensor]:
    codes, scale = quantize_fp8(rows)
    return codes[:, columns], scale


def look_up_rows(weight: Matrix, ids: Tensor, dtype: torch.dtype) -> Tensor:
    codes, scale = (part[ids] for part in list_tensors(weight))
    return (codes.float() * scale[:, None]).to(dtype)


def make_groups(outputs: int, inputs: int, dtype: torch.dtype, device: torch.device) -> Codes:
    """Raises ValueError if a rank's inputs are not whole groups."""
    if inputs % GROUP:
        raise ValueError(f"quantization int4 keeps groups of {GROUP} inputs, and here a matrix has {inputs}: use int8")
    codes = torch.zeros(outputs, inputs // 2, dtype=torch.uint8, device=device)
    grid = [torch.zeros(outputs, inputs // GROUP, dtype=dtype, device=device) for _ in ("scale", "low")]
    return Codes(torch.Size((outputs, inputs)), dtype, partial(quantize_groups, dtype), codes, *grid)


def quantize_groups(dtype: torch.dtype, rows: Tensor, columns: slice) -> tuple[Tensor, ...]:
    """Raises ValueError if the columns begin within a group."""
    if (columns.start or 0) % GROUP:
        raise ValueError(f"quantization int4 keeps groups of {GROUP} inputs, and a rank's begin at {columns.start}")
    return quantize_int4(rows[:, columns], dtype)


def look_up_groups(weight: Matrix, ids: Tensor, dtype: torch.dtype) -> Tensor:
    codes, scale, low = (part[ids] for part in list_tensors(weight))
    return unpack_spec(codes, scale, low).to(dtype)


def list_tensors(memory: Matrix) -> tuple[Tensor, ...]:
    """What a matrix consists of."""
    return (memory,) if isinstance(memory, Tensor) else memory.parts


def fill(memory: Matrix, whole: Sliceable, part: Part) -> None:
    """Copy the part of a whole tensor that belongs here, in whatever way it is kept."""
    if isinstance(memory, Tensor):
        memory.copy_(whole[part])
    else:
        memory.fill(whole, part)
