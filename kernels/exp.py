"""exp(x) = 2 ** i * 2 ** f, where i + f = x / ln 2, i whole and |f| <= 1/2: no table, no branch, so a loop can use it.

    2 ** i    i's bits where a float32 keeps its exponent      sign 0 | i + 127 | 000...
    2 ** f    the first seven terms of its series, exact to 1.2e-7

numba has no exp that fits wide registers unless a library of Intel's is installed. Invariant: a NaN stays a NaN."""

import math

import numpy as np

from .jit import compiled

LOG2_E, HALF, ONE = np.float32(1 / math.log(2)), np.float32(0.5), np.float32(1)
LEAST, MOST = np.float32(-126), np.float32(128)  # powers of 2: the smallest normal number, infinity
C1, C2, C3, C4, C5, C6 = [np.float32(math.log(2) ** i / math.factorial(i)) for i in range(1, 7)]  # of 2 ** f


@compiled()
def exp(x: np.float32) -> np.float32:
    """Off by 2e-7 + 8e-8 |x| of it at most; 2 ** -126 instead of less, infinity from 2 ** 127.5 on."""
    power = x * LOG2_E
    power = LEAST if power < LEAST else power  # not max and min: a NaN stays one
    power = MOST if power > MOST else power
    i = np.floor(power + HALF)
    f = power - i
    bits = np.int32((np.int32(i) + np.int32(127)) << np.int32(23))
    series: np.float32 = ((((((C6 * f + C5) * f + C4) * f + C3) * f + C2) * f + C1) * f) + ONE
    return series * bits.view(np.float32)
