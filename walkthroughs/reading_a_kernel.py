# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Reading a Triton kernel, line by line
#
# Paged attention is the kernel that makes blocks usable. It is some forty lines, and each can be run by itself on a
# CPU: Triton's language is arithmetic on tiles of numbers. We take one program of the grid and do what its lines do,
# with the real numbers on screen: pointers, masks, scores, and the running softmax. At the end the real kernel runs in
# Triton's interpreter and has to agree.

# %%
# %matplotlib inline
import sys

sys.path[:0] = [".."]  # the levels live in the checkout, one folder up

import os

os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported: kernels run on CPU tensors, line by line

import math

import torch

from minipaged.kernels import paged_attention_triton as kernel
from minipaged.kernels.paged_attention import ALL_KEYS, paged_attention_spec
from minipaged.viz import quote

torch.manual_seed(0)
torch.set_printoptions(precision=2, sci_mode=False, linewidth=120)

# %% [markdown]
# ## What it computes
#
# The formula as plain PyTorch. This is the specification that the kernel is tested against:

# %%
quote(paged_attention_spec)

# %% [markdown]
# ## A small world
#
# Blocks of P = 4 slots, one kv head with a group of G = 2 query heads, heads of D = 16 numbers. One sequence with 6
# keys, of which the last is the token that runs now: a decode. Its blocks are 3 and 1. All other memory is NaN:
# whoever reads it will be found out.

# %%
P, G, D, num_keys = 4, 2, 16, 6
keys, values = torch.full((5, 1, P, D), float("nan")), torch.full((5, 1, P, D), float("nan"))
table = torch.tensor([[3, 1]], dtype=torch.int32)
for position in range(num_keys):
    keys[table[0, position // P], 0, position % P] = torch.randn(D)
    values[table[0, position // P], 0, position % P] = torch.randn(D)
q = torch.randn(1, G, D)  # [T, H, D]: one token, two heads
starts, lens = torch.tensor([0, 1], dtype=torch.int32), torch.tensor([num_keys], dtype=torch.int32)

# %% [markdown]
# ## The kernel
#
# One *program* answers for one sequence, one kv head and a few tokens. `p_` is a pointer, `o_` offsets, `m_` a mask,
# `b_` what was loaded; names stand for whole tiles. Scales are for keys and values that are kept as int8 or fp8; here
# they are None, and what stands under `is not None` is left out when the kernel is compiled.

# %%
quote(kernel.paged_attention_kernel)

# %%
quote(kernel.walk)

# %% [markdown]
# ## Rows
#
# A program has BR rows. Row r is token `r // G` and head `r % G` of the group. We take BR = 4: two rows exist, two do
# not, and the mask says so.

# %%
BR, BN, BD = 4, 4, 16  # rows, keys at a time, numbers in a head
o_row = torch.arange(BR)
o_token, o_head = o_row // G, o_row % G
m_row = (o_row < BR // G * G) & (o_token < 1)
{"o_row": o_row.tolist(), "o_token": o_token.tolist(), "o_head": o_head.tolist(), "m_row": m_row.tolist()}

# %% [markdown]
# `tl.load` with a tile of pointers: base + token * stride + head * stride + dimension. What the mask forbids is not
# read; it is 0 instead. Here are the offsets, from the beginning of q's memory, of the first four numbers of each row:

# %%
offsets = (o_token * q.stride(0) + o_head * q.stride(1))[:, None] + torch.arange(BD)[None, :]
offsets[:, :4]

# %%
b_q = torch.where(m_row[:, None], q.flatten()[offsets.clamp(max=q.numel() - 1)], 0.0)
b_q[:, :6]

# %% [markdown]
# ## Walking along the keys
#
# `for n in range(begin, hi, BN)`: BN = 4 keys at a time. The running softmax starts with nothing seen:

# %%
top, total, acc = torch.full([BR], -math.inf), torch.zeros(BR), torch.zeros(BR, BD)
lo, hi, position = 0, num_keys, torch.full([BR], num_keys - 1)
scale = D**-0.5 / math.log(2)  # with 2 ^ x instead of e ^ x, which the hardware has

# %% [markdown]
# **The first step, n = 0.** Which block and which slot has each key? The table says:

# %%
n = 0
o_key = n + torch.arange(BN)
m_key = (o_key >= lo) & (o_key < hi)
b_block, o_slot = table[0][(o_key // P).clamp(max=1)].long(), o_key % P
{"o_key": o_key.tolist(), "m_key": m_key.tolist(), "b_block": b_block.tolist(), "o_slot": o_slot.tolist()}

# %% [markdown]
# Load the keys, multiply: a tile of scores, rows by keys.

# %%
b_k = torch.where(m_key[:, None], keys[b_block, 0, o_slot], 0.0)
scores = b_q @ b_k.T * scale
distance = position[:, None] - o_key[None, :]
scores = torch.where((distance >= 0) & m_key[None, :], scores, -math.inf)
scores

# %% [markdown]
# The running softmax. `top` is the largest score so far, `total` the sum of 2 ^ (score - top), `acc` the values weighed
# by them. If a larger score comes, everything so far shrinks by 2 ^ (old top - new top):

# %%
new_top = torch.maximum(top, scores.max(1).values)
weights, shrink = torch.exp2(scores - new_top[:, None]), torch.exp2(top - new_top)
b_v = torch.where(m_key[:, None], values[b_block, 0, o_slot], 0.0)
total, acc, top = total * shrink + weights.sum(1), acc * shrink[:, None] + weights @ b_v, new_top
{"top": top[:2].tolist(), "shrink": shrink[:2].tolist(), "total": total[:2].tolist()}

# %% [markdown]
# **The second step, n = 4.** Only two keys are left; for the others the mask is false, and the NaN in their slots is
# not read.

# %%
n = 4
o_key = n + torch.arange(BN)
m_key = (o_key >= lo) & (o_key < hi)
b_block, o_slot = table[0][(o_key // P).clamp(max=1)].long(), o_key % P
print("m_key", m_key.tolist(), " b_block", b_block.tolist(), " what lies there:", keys[b_block, 0, o_slot, 0].tolist())
b_k = torch.where(m_key[:, None], keys[b_block, 0, o_slot], 0.0)
scores = torch.where(m_key[None, :], b_q @ b_k.T * scale, -math.inf)
scores[:2]

# %%
new_top = torch.maximum(top, scores.max(1).values)
weights, shrink = torch.exp2(scores - new_top[:, None]), torch.exp2(top - new_top)
b_v = torch.where(m_key[:, None], values[b_block, 0, o_slot], 0.0)
total, acc, top = total * shrink + weights.sum(1), acc * shrink[:, None] + weights @ b_v, new_top
{"top": top[:2].tolist(), "shrink": shrink[:2].tolist(), "total": total[:2].tolist()}

# %% [markdown]
# Where shrink is 1 the largest score was in the first tile already. At the end one division:

# %%
mine = acc[:2] / total[:2, None]
mine[:, :6]

# %% [markdown]
# ## The real one
#
# The same through the real kernel, interpreted, and through the specification:

# %%
tiles = kernel.Tiles(rows=16, keys=16, splits=1, warps=4, stages=2)
out = kernel.paged_attention(q, keys, values, table, starts, lens, ALL_KEYS, 1, num_keys, tiles)
spec = paged_attention_spec(q, keys, values, table, starts, lens, ALL_KEYS)
print("by hand and kernel agree:       ", torch.allclose(mine, out[0], atol=1e-5))
print("kernel and specification agree: ", torch.allclose(out, spec, atol=1e-5))

# %% [markdown]
# To stop inside it, start a Python with `TRITON_INTERPRET=1`, and put `breakpoint()` into `walk`: every name above can
# be printed there.
#
# ## Splits
#
# A decode of a long sequence has a handful of rows and thousands of keys: one program would walk for long, and the rest
# of the GPU would idle. So the walk is cut, each part has a result and a log-sum, and a second kernel weighs them:

# %%
quote(kernel.combine_kernel)

# %%
tiles = kernel.Tiles(rows=16, keys=16, splits=2, warps=4, stages=2)
split = kernel.paged_attention(q, keys, values, table, starts, lens, ALL_KEYS, 1, num_keys, tiles)
print("in two splits, the same:", torch.allclose(split, spec, atol=1e-5))

# %% [markdown]
# ## Questions
#
# <details><summary>Why does the running softmax subtract the largest score at all?</summary>
# 2 ^ score overflows for large scores. With the largest subtracted every power is at most 1, and the ratio is the
# same.</details>
#
# <details><summary>Why are rows of several heads in one program?</summary>
# The heads of a group read the same keys: loaded once, they serve G rows. And matrix units want 16 rows or
# more.</details>
#
# <details><summary>Why is it not enough to multiply what lies behind the end by a weight of 0?</summary>
# Zero times NaN is NaN. What nobody wrote must not be read, so the load itself has the mask.</details>
