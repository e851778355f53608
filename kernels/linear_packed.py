"""y = x W^T in float32 for one row or two on a CPU, with W read in the order in which oneDNN keeps it.

    W [N, K]    a0 a1 a2 ..        blocks [N / 64, K, 64]    a0 b0 c0 .. | a1 b1 c1 .. | a2 b2 c2 ..
                b0 b1 b2 ..
                c0 c1 c2 ..        sums [64]  +=  x[k] * blocks[i, k]     the weights in one long walk

oneDNN multiplies four rows in less time than one, whose way it goes by a loop of its own: all matrices of the default
model take it 23.6 ms for one row on two cores of an EPYC with AVX-512, 25.6 for two, 20 for four; these loops take 18.4
and 21.5, and 28 for four. The weights stand in memory once: its copy is read where it lies.

Which order that is, oneDNN tells nobody, and it has others on other CPUs and for other shapes. Invariant: what it made
is compared with the weights, number by number, before those are dropped; if it is another order, nobody reads it."""

import ctypes

import numpy as np
import torch
from numba import prange
from torch import Tensor

from .jit import Floats, Thread, compiled, flat, num_threads, share_of

FEW = 2  # rows
WIDTH, STEP = 64, 4  # columns of a block; rows of it that are taken together
ZERO = np.float32(0)


def find_blocks(packed: Tensor, weight: Tensor) -> Floats | None:
    """The memory of a packed matrix as blocks [N / WIDTH, K, WIDTH], if that is what it is; it lives as long as packed.

    weight [N, K]: what was packed."""
    (N, K), known = weight.shape, torch.ops.mkldnn
    if N % WIDTH or K % STEP or not hasattr(known, "data_ptr") or known._nbytes(packed) != weight.nbytes:
        return None
    memory = (ctypes.c_float * weight.numel()).from_address(known.data_ptr(packed))
    blocks = torch.frombuffer(memory, dtype=torch.float32).view(N // WIDTH, K, WIDTH)
    same = torch.equal(blocks, weight.view(N // WIDTH, WIDTH, K).transpose(1, 2))
    return blocks.numpy() if same else None


def linear_packed_spec(x: Tensor, blocks: Tensor) -> Tensor:
    """x [T, K], blocks [N / WIDTH, K, WIDTH] -> [T, N]"""
    return torch.einsum("tk,bkn->tbn", x, blocks).flatten(1)


def linear_packed_cpu(x: Tensor, blocks: Floats) -> Tensor:
    """The same; sums of four products at a time."""
    num_blocks, K, width = blocks.shape
    assert x.shape[1] == K, f"x {x.shape}, blocks {blocks.shape}"
    assert K % STEP == 0, f"{K} is not in steps of {STEP}"
    out = torch.empty(len(x), num_blocks * width)
    multiply_blocks(flat(x), x.stride(0), blocks, out.numpy(), num_threads(blocks.size))
    return out


@compiled(parallel=True)
def multiply_blocks(x: Floats, x_t: int, blocks: Floats, out: Floats, threads: int) -> None:
    if threads == 1:
        multiply_blocks_share(x, x_t, blocks, out, np.int64(0), threads)
    else:
        for thread in prange(threads):
            multiply_blocks_share(x, x_t, blocks, out, np.int64(thread), threads)


@compiled()
def multiply_blocks_share(x: Floats, x_t: int, blocks: Floats, out: Floats, thread: Thread, threads: int) -> None:
    """A thread's columns of out [T, N]; rows of x are x_t apart."""
    num_blocks, K, width = blocks.shape
    start, end = share_of(num_blocks, thread, threads)
    for i in range(start, end):
        for t in range(len(out)):
            sums = out[t, i * width : (i + 1) * width]
            sums[:] = ZERO
            for k in range(0, K, STEP):
                first = t * x_t + k
                x0, x1, x2, x3 = x[first], x[first + 1], x[first + 2], x[first + 3]
                for j in range(width):
                    sums[j] += (
                        x0 * blocks[i, k, j]
                        + x1 * blocks[i, k + 1, j]
                        + x2 * blocks[i, k + 2, j]
                        + x3 * blocks[i, k + 3, j]
                    )
