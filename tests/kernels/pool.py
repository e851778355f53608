"""A ragged batch over a pool of NaN, in which only the slots that hold a key are numbers.

World(lens=(13, 0, 5), query_lens=(1, 1, 5), ...)      blocks dealt at random, some of them to nobody
worlds()                                               hypothesis draws them: block edges, odd heads, any group"""

import math
import mmap
from dataclasses import dataclass
from itertools import accumulate

import torch
from hypothesis import strategies as st

from minipaged.kernels.narrow import narrow_spec, widen_spec
from minipaged.kernels.paged_attention import ALL_KEYS, paged_attention_spec
from minipaged.kernels.paged_attention_triton import paged_attention
from tests.kernels.guard import DEVICE, DTYPES, guarded

SPARE = 3  # blocks that nobody has


@dataclass(frozen=True)
class World:
    lens: tuple[int, ...]
    query_lens: tuple[int, ...]
    num_kv_heads: int = 2
    group_size: int = 2
    head_dim: int = 16
    block_size: int = 8
    window: int = ALL_KEYS
    dtype: torch.dtype = torch.float32

    def tensors(self):
        """q, keys, values, tables, query_start_loc, seq_lens"""
        generator = torch.Generator().manual_seed(hash((self.lens, self.head_dim)) % 1000)
        num_blocks = [-(-n // self.block_size) for n in self.lens]
        blocks = torch.randperm(sum(num_blocks) + SPARE, generator=generator)
        pool = torch.full((2, len(blocks), self.num_kv_heads, self.block_size, self.head_dim), float("nan"))
        tables = torch.zeros(len(self.lens), max([*num_blocks, 1]), dtype=torch.int32)
        for s, (n, last) in enumerate(zip(self.lens, accumulate(num_blocks), strict=True)):
            tables[s, : num_blocks[s]] = blocks[last - num_blocks[s] : last]
            new = torch.randn(n, 2, self.num_kv_heads, self.head_dim, generator=generator)
            block, offset = tables[s, torch.arange(n) // self.block_size].long(), torch.arange(n) % self.block_size
            pool[:, block, :, offset] = new
        q = torch.randn(sum(self.query_lens), self.num_kv_heads * self.group_size, self.head_dim, generator=generator)
        integers = (tables, torch.tensor([0, *accumulate(self.query_lens)]), torch.tensor(self.lens))
        return [t.to(DEVICE, self.dtype) for t in (q, *pool)] + [t.to(DEVICE, torch.int32) for t in integers]

    def attend(self, tensors, tiles=None, launcher=paged_attention, scales=None):
        """What the kernel says."""
        longest = max(self.query_lens), max(self.lens)
        tiles = tiles and tiles._replace(rows=max(tiles.rows, 32 * (self.group_size > 16)))
        return guarded(launcher, *tensors, self.window, *longest, tiles, scales)

    def expected(self, tensors):
        """What the specification says, in float32."""
        wide = [t.float() if t.is_floating_point() else t for t in tensors]
        return paged_attention_spec(*wide, self.window)


def narrowed(tensors, dtype):
    """The tensors with keys and values narrow, and their scales; and with what these stand for, in float32."""
    q, *pools, tables, starts, lens = tensors
    narrow = [narrow_spec(pool, dtype) for pool in pools]
    wide = [widen_spec(*part) for part in narrow]  # NaN where nobody wrote, as their scales
    for (numbers, scales), pool in zip(narrow, pools, strict=True):
        assert scales.isnan().equal(pool.isnan().any(-1))
        numbers.view(torch.int8)[scales.isnan()] = 127  # NaN in e4m3
    (keys, of_keys), (values, of_values) = narrow
    rest = (tables, starts, lens)
    return [q, keys, values, *rest], (of_keys, of_values), [q, *wide, *rest]


def far_apart(num_pools, *block_shape, dtype=torch.float16):
    """Pools [3, *block_shape] with 2^30 numbers from block to block: the last begins at 2^31.

    An offset cut to 32 bits lands 2^31 in front of the first, in memory that is all zeros and belongs to nobody."""
    stride, size = 2**30, math.prod(block_shape)
    no_reserve = getattr(mmap, "MAP_NORESERVE", 0x4000)  # only pages that are touched get memory
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | no_reserve
    num_bytes = dtype.itemsize * (4 * stride + num_pools * size)
    room = torch.frombuffer(mmap.mmap(-1, num_bytes, flags=flags), dtype=dtype)
    strides = (stride, *torch.empty(block_shape, device="meta").stride())
    return [room.as_strided((3, *block_shape), strides, 2 * stride + i * size) for i in range(num_pools)]


@st.composite
def worlds(draw):
    block_size = draw(st.sampled_from([8, 16, 24, 32, 64, 256]))
    edges = [0, 1, block_size - 1, block_size, block_size + 1, 2 * block_size]
    lens = draw(st.lists(st.sampled_from([n for n in edges if n < 70]), min_size=1, max_size=3))
    query_lens = [draw(st.integers(1, max(1, min(n, 18)))) for n in lens]
    group_size, num_kv_heads = draw(st.sampled_from([(1, 3), (2, 2), (3, 2), (4, 1), (5, 1), (8, 1), (20, 1)]))
    return World(
        tuple(lens),
        tuple(query_lens),
        num_kv_heads,
        group_size,
        head_dim=draw(st.sampled_from([16, 24, 64, 80, 96, 128, 256])),
        block_size=block_size,
        window=draw(st.sampled_from([ALL_KEYS, 1, 4, block_size])),
        dtype=draw(st.sampled_from(DTYPES)),
    )
