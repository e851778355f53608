"""A whole layer in one call, for a step of one token or few on a CPU.

    from Python    norm | qkv | rope | rope | write | attend | o | norm | gate, up | silu | down      eleven calls
    here           the same eleven kernels, each called by machine code

With one token most of them are done in less time than Python takes to ask for them: a norm takes half a microsecond,
and to have it done, ten. Nothing is computed in another way, so results are the same to the last bit. Matrices are
codes and scales (linear_int8.py), or float32 in blocks (linear_packed.py). What a layer is, decoder.py says; this one
knows no biases, no norms of heads, no other ranks."""

import numpy as np
import torch
from torch import Tensor

from .jit import WORTH_WAKING, Floats, compiled, flat
from .linear_int8 import Codes, multiply_all
from .linear_packed import multiply_blocks
from .paged_attention import Ints, attend_all
from .rms_norm import Scaling, add_rms_norm_all
from .rope import rope_all
from .silu_mul import silu_mul_all
from .write_kv import Slots, write_all

Product = tuple[int, int, Codes | None, Floats | None, Floats | None]  # N, K; codes and scale, or blocks
Weights = tuple[Scaling, Product, Product, Scaling, Product, Product]  # norm, qkv, o; norm, gate and up, down
Pair = tuple[Tensor, Tensor]
FloatPair = tuple[Floats, Floats]
Places = tuple[Slots, Ints, Ints, Ints]


def layer_cpu(
    weights: Weights, window: int, state: Pair, angles: Pair, pools: Pair, places: tuple[Tensor, Tensor, Tensor, Tensor]
) -> Pair:
    """state: the change that is yet to be added to x, and x, [T, M] each; angles: cos and sin [T, 1, D / 2]; pools:
    keys and values [B, K, P, D]; places: slot_mapping [T], tables [S, longest], query_start_loc [S + 1], seq_lens [S]
    -> the state after this layer."""
    (change, x), (cos, sin), (keys, values), (slots, tables, starts, lens) = state, angles, pools, places
    assert change.shape == x.shape == (len(slots), weights[1][1]), f"change {change.shape}, x {x.shape}"
    assert cos.shape == sin.shape == (len(x), 1, keys.shape[3] // 2), f"cos {cos.shape}, sin {sin.shape}"
    assert keys.shape == values.shape, f"keys {keys.shape}, values {values.shape}"
    assert len(tables) == len(lens) == len(starts) - 1, f"tables {tables.shape}, lengths {lens.shape}"
    for tensor in (change, x, cos, sin, keys, values):
        assert tensor.is_contiguous(), f"strides {tensor.stride()} of {tensor.shape}"
    new_change, new_x = torch.empty(*x.shape), torch.empty(*x.shape)
    layer_all(
        weights, window, (flat(change), flat(x)), (flat(cos), flat(sin)), (keys.numpy(), values.numpy()),
        (slots.numpy(), tables.numpy(), starts.numpy(), lens.numpy()), (new_change.numpy(), new_x.numpy()),
        torch.get_num_threads(),
    )  # fmt: skip
    return new_change, new_x


@compiled()
def layer_all(
    weights: Weights,
    window: int,
    state: FloatPair,
    angles: FloatPair,
    pools: FloatPair,
    places: Places,
    out: FloatPair,
    threads: int,
) -> None:
    """out: the new change and x, [T, M] each."""
    (norm, qkv, o, post_norm, gate_up, down), (new_change, new_x) = weights, out
    (T, M), normed, x = new_x.shape, np.empty_like(new_x), np.empty_like(new_x)
    one = min(threads, 1)  # a literal 1 is a type of its own, to compile everything for once more
    add_rms_norm_all(state[0], state[1], (M, M), norm, (normed, x), one)
    rows, attended = multiply(normed, qkv, threads), np.zeros((T, o[1]), np.float32)
    attend(rows, window, angles, pools, places, attended, threads)
    change = multiply(attended, o, threads)
    add_rms_norm_all(change.reshape(-1), x.reshape(-1), (M, M), post_norm, (normed, new_x), one)
    rows, features = multiply(normed, gate_up, threads), np.empty((T, down[1]), np.float32)
    silu_mul_all(rows.reshape(-1), rows.shape[1], features, one)
    new_change[:] = multiply(features, down, threads)


@compiled()
def multiply(x: Floats, product: Product, threads: int) -> Floats:
    """x [T, K] -> [T, N]"""
    N, K, codes, scale, blocks = product
    out = np.empty((len(x), N), np.float32)
    fill(x.reshape(-1), out, codes, scale, blocks, threads if N * K >= WORTH_WAKING else min(threads, 1))
    return out


@compiled()
def fill(
    x: Floats, out: Floats, codes: Codes | None, scale: Floats | None, blocks: Floats | None, threads: int
) -> None:
    """x flat, rows side by side. Which of the two it is, numba decides when it compiles for None."""
    if codes is not None and scale is not None:
        multiply_all(x, len(x) // len(out), codes, scale, out, threads)
    if blocks is not None:
        multiply_blocks(x, len(x) // len(out), blocks, out, threads)


@compiled()
def attend(
    qkv: Floats, window: int, angles: FloatPair, pools: FloatPair, places: Places, out: Floats, threads: int
) -> None:
    """qkv [T, (H + 2 K) D] -> out [T, H D], and keys and values are where they belong."""
    (cos, sin), (keys, values), (slots, tables, starts, lens) = angles, pools, places
    (T, width), (_, K, _, D), H = qkv.shape, keys.shape, out.shape[1] // keys.shape[3]
    rows, strides = qkv.reshape(-1), (width, D, D // 2, D // 2)
    q, k, one = np.empty((T, H, D), np.float32), np.empty((T, K, D), np.float32), min(threads, 1)
    rope_all(rows, cos, sin, strides, q, one)
    rope_all(rows[H * D :], cos, sin, strides, k, one)
    write_all(((k.reshape(-1), (K * D, D)), (rows[(H + K) * D :], (width, D))), pools, slots)
    attend_all(q, (keys, None), (values, None), tables, starts, lens, window, out.reshape(T, H, D), threads)
