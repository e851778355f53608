"""x = scale * n: a row of D numbers is kept as D narrow ones and a scale of its own.

    x       [  0.4  -2.0   1.1  0.02 ]      float32: 16 bytes, here with D = 4
    n       [   25  -127    70     1 ]      int8: 4 bytes, round(127 x / max |x|)
    scale      0.01575                      float32: max |x| / 127

    int8         n is whole, at most 127             as wrong as half a scale, whatever the size of x
    fp8 (e4m3)   n has 3 bits behind its leading one, at most 448       as wrong as 1/16 of x

In the KV cache a row is what one token leaves in one head. Why a scale for each: a written slot never changes. Were a
block to have one scale, the token that comes with a larger number would have all before it rounded again, and what a
block holds would depend on the steps in which it was filled: on chunks, company, a preemption. With D = 64 the scales
are 6 % of the bytes. A row that is not finite has a scale of NaN; one of less than TINY is zero."""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .jit import Floats, compiled

Scales = tuple[Tensor, Tensor]  # of keys and of values, [B, K, P] each
Numbers = NDArray[np.int8]

LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
TINY = 1e-30  # 448 / TINY is still a float32
INT8, PART = np.float32(LARGEST[torch.int8]), np.float32(1 / LARGEST[torch.int8])
LEAST, ZERO = np.float32(TINY), np.float32(0)


def narrow_spec(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """x [..., D] -> numbers [..., D] of this dtype, and float32 scales [...]"""
    x, most = x.float(), LARGEST[dtype]
    largest = x.abs().amax(-1)  # NaN if a number is
    inverse = torch.where((largest > TINY) & (largest < math.inf), most / largest, 0)
    scales = torch.where(largest <= TINY, 0, torch.where(largest < math.inf, largest * (1 / most), math.nan))
    numbers = (x * inverse[..., None]).nan_to_num(0)
    return (numbers.round() if dtype == torch.int8 else numbers).to(dtype), scales


def widen_spec(numbers: Tensor, scales: Tensor | None) -> Tensor:
    """numbers [..., D], scales [...] -> float32 [..., D]; without scales, numbers are what they are."""
    return numbers.float() if scales is None else numbers.float() * scales[..., None]


@compiled()
def narrow_row(row: Floats, numbers: Numbers) -> np.float32:
    """row [D] into numbers [D]; their scale."""
    largest = nothing = ZERO
    for d in range(len(numbers)):
        largest = max(largest, abs(row[d]))
        nothing += row[d] * ZERO
    inverse = INT8 / largest if largest > LEAST else ZERO
    for d in range(len(numbers)):
        numbers[d] = np.int8(np.rint(row[d] * inverse))
    return nothing + (largest * PART if largest > LEAST else ZERO)
