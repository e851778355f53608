"""A row of scores never has to be there as a whole: what is summed so far shrinks whenever a larger score comes.

    scores of a tile     [ 1  4 | 2  6 | 0  5 ]     top    4   ->  6  ->  6
                                                    acc    sum of exp(score - top) values, shrunk by exp(4 - 6) once

Milakov and Gimelshein 2018; FlashAttention, Dao et al. 2022. Here as loops for a CPU. Invariant: a hidden key has a
weight of zero, whatever its score was, NaN included."""

import numpy as np

from .exp import exp
from .jit import Floats, compiled

ZERO = np.float32(0)


@compiled()
def weigh(
    scores: Floats, start: int, end: int, top: np.float32, total: np.float32, acc: Floats
) -> tuple[np.float32, np.float32]:
    """Turn a row's scores [N] into weights, zero but for keys start .. end; the new maximum and sum of weights."""
    if end <= start:
        scores[:] = ZERO
        return top, total
    new_top = top
    for j in range(start, end):
        new_top = max(new_top, scores[j])
    shrink = np.exp(top - new_top)
    for d in range(len(acc)):
        acc[d] *= shrink
    scores[:start] = ZERO
    exp_minus(scores[start:end], new_top)
    scores[end:] = ZERO
    return new_top, total * shrink + np.sum(scores[start:end])


@compiled()
def exp_minus(x: Floats, top: np.float32) -> None:
    """x = exp(x - top)"""
    for j in range(len(x)):
        x[j] = exp(x[j] - top)
