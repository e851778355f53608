"""Products of a few rows with a run of keys or values: neighbours in a block, so they lie side by side, [n, D].

    scores [R, n] = rows [R, D] . run [n, D]        acc [R, D] += weights [R, n] . run [n, D]

A run of int8 numbers has scales [n]: a row's score with a key is scaled by the key's, a weight by its value's.
Nothing is copied: a decode reads each key once, and a copy would read it twice. Four are taken at a time, so that a
row is read once for all four; what is left of a run, one at a time, for behind it lies memory that nobody wrote."""

import numpy as np

from .jit import Floats, compiled
from .narrow import Numbers

ZERO = np.float32(0)


@compiled()
def score_run(rows: Floats, run: Floats | Numbers, scores: Floats, column: int) -> None:
    """scores [R, column ..] = rows [R, D] . run [n, D], four keys at a time so that a row is read once for all."""
    fours = len(run) // 4 * 4
    for j in range(0, fours, 4):
        for r in range(len(rows)):
            s0 = s1 = s2 = s3 = ZERO
            for d in range(rows.shape[1]):
                x = rows[r, d]
                s0 += x * np.float32(run[j, d])
                s1 += x * np.float32(run[j + 1, d])
                s2 += x * np.float32(run[j + 2, d])
                s3 += x * np.float32(run[j + 3, d])
            i = column + j
            scores[r, i], scores[r, i + 1], scores[r, i + 2], scores[r, i + 3] = s0, s1, s2, s3
    for j in range(fours, len(run)):
        for r in range(len(rows)):
            s = ZERO
            for d in range(rows.shape[1]):
                s += rows[r, d] * np.float32(run[j, d])
            scores[r, column + j] = s


@compiled()
def add_run(weights: Floats, run: Floats | Numbers, acc: Floats, column: int) -> None:
    """acc [R, D] += weights [R, column ..] . run [n, D], four values at a time."""
    fours = len(run) // 4 * 4
    for j in range(0, fours, 4):
        i = column + j
        for r in range(len(acc)):
            w0, w1, w2, w3 = weights[r, i], weights[r, i + 1], weights[r, i + 2], weights[r, i + 3]
            for d in range(acc.shape[1]):
                acc[r, d] += (
                    w0 * np.float32(run[j, d])
                    + w1 * np.float32(run[j + 1, d])
                    + w2 * np.float32(run[j + 2, d])
                    + w3 * np.float32(run[j + 3, d])
                )
    for j in range(fours, len(run)):
        for r in range(len(acc)):
            w = weights[r, column + j]
            for d in range(acc.shape[1]):
                acc[r, d] += w * np.float32(run[j, d])


@compiled()
def scale_run(x: Floats, scales: Floats, column: int) -> None:
    """x [R, column ..] *= scales [n]"""
    for r in range(len(x)):
        for j in range(len(scales)):
            x[r, column + j] *= scales[j]
