"""Both ways of a CPU against their specification, and the specification against attention written out token by token.

Memory that nobody wrote is NaN in every test: whoever reads it cannot hide."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minipaged.kernels import prompt_attention
from minipaged.kernels.paged_attention import ALL_KEYS, paged_attention_cpu, paged_attention_spec
from minipaged.kernels.prompt_attention import attention_cpu, gather


def gathered(*batch):
    """Every chunk the way of long ones."""
    return attention_cpu(*batch, many=1)


def in_slices(*batch):
    """The same, three queries at a time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prompt_attention, "SLICE", 3)
        return gathered(*batch)


def each_its_own_way(*batch):
    return attention_cpu(*batch, many=8)


KERNELS = [paged_attention_cpu, gathered, in_slices, each_its_own_way]
IMPLEMENTATIONS = [paged_attention_spec, *KERNELS]


class World:
    """Random sequences in shuffled blocks; chunks are (number of keys, of which the last so many are queries)."""

    def __init__(self, chunks, *, num_heads=4, num_kv_heads=2, head_dim=8, block_size=4, seed=0):
        rng = torch.Generator().manual_seed(seed)
        self.chunks, self.num_heads = chunks, num_heads
        lens, num_queries = [n for n, _ in chunks], [m for _, m in chunks]
        num_blocks = [-(-n // block_size) for n in lens]
        pool = torch.randperm(sum(num_blocks) + 1, generator=rng).tolist()
        shape = (len(pool), num_kv_heads, block_size, head_dim)
        self.keys, self.values = torch.full(shape, math.nan), torch.full(shape, math.nan)
        self.tables = torch.zeros(len(chunks), max([1, *num_blocks]), dtype=torch.int32)
        self.k = [torch.randn(n, num_kv_heads, head_dim, generator=rng) for n in lens]
        self.v = [torch.randn(n, num_kv_heads, head_dim, generator=rng) for n in lens]
        for s, n in enumerate(num_blocks):
            table, pool = pool[:n], pool[n:]
            self.tables[s, :n] = torch.tensor(table, dtype=torch.int32)
            for p in range(lens[s]):
                self.keys[table[p // block_size], :, p % block_size] = self.k[s][p]
                self.values[table[p // block_size], :, p % block_size] = self.v[s][p]
        self.query_start_loc = torch.tensor([0, *num_queries]).cumsum(0).int()
        self.seq_lens = torch.tensor(lens, dtype=torch.int32)
        self.q = torch.randn(sum(num_queries), num_heads, head_dim, generator=rng)

    def attend(self, implementation, window=ALL_KEYS):
        places = (self.tables, self.query_start_loc, self.seq_lens)
        return implementation(self.q, self.keys, self.values, *places, window)

    def token_by_token(self, window=ALL_KEYS):
        """The formula, one query and one head at a time."""
        out, t = torch.zeros_like(self.q), 0
        for (n, m), k, v in zip(self.chunks, self.k, self.v, strict=True):
            for position in range(n - m, n):
                seen = slice(max(0, position - window + 1), position + 1)
                for head in range(self.num_heads if n else 0):
                    kv_head = head * k.shape[1] // self.num_heads
                    scores = k[seen, kv_head] @ self.q[t, head] / math.sqrt(k.shape[2])
                    out[t, head] = scores.softmax(0) @ v[seen, kv_head]
                t += 1
        return out


MIXED = [(13, 1), (9, 9), (30, 7), (4, 4), (1, 1)]


@pytest.mark.parametrize("attend", IMPLEMENTATIONS)
@pytest.mark.parametrize("window", [ALL_KEYS, 1, 4, 8])
def test_a_batch_of_prompts_chunks_and_decodes_is_the_formula(attend, window):
    world = World(MIXED)
    torch.testing.assert_close(world.attend(attend, window), world.token_by_token(window), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("attend", IMPLEMENTATIONS)
def test_slots_that_nobody_wrote_are_not_read(attend):
    world = World([(13, 1)])  # the last block has three unwritten slots
    out = world.attend(attend)
    assert not out.isnan().any()
    world.keys.nan_to_num_(0.0)
    world.values.nan_to_num_(0.0)
    assert torch.equal(world.attend(attend), out)


@pytest.mark.parametrize("attend", IMPLEMENTATIONS)
def test_a_padding_row_without_keys_gives_zeros_and_disturbs_nobody(attend):
    world = World([(3, 1), (0, 1), (5, 2), (0, 0)])
    out = world.attend(attend)
    assert torch.equal(out[1], torch.zeros_like(out[1]))
    torch.testing.assert_close(out, world.token_by_token(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("attend", IMPLEMENTATIONS)
def test_an_empty_batch_has_an_empty_answer(attend):
    assert World([]).attend(attend).shape == (0, 4, 8)


@pytest.mark.parametrize("attend", IMPLEMENTATIONS)
@pytest.mark.parametrize(("chunks", "visible"), [([(6, 6)], range(6)), ([(6, 1)], [5]), ([(6, 2)], [4, 5])])
def test_a_window_of_four_sees_four_keys_the_own_included(attend, chunks, visible):
    world = World(chunks, num_heads=1, num_kv_heads=1, head_dim=6)
    world.q.zero_()  # so that every visible key weighs the same
    world.values[world.tables[0, :2].long(), 0] = torch.eye(8, 6).view(2, 4, 6)
    for row, position in zip(world.attend(attend, window=4)[:, 0], visible, strict=True):
        seen = range(max(0, position - 3), position + 1)
        expected = [1 / len(seen) if p in seen else 0 for p in range(6)]
        torch.testing.assert_close(row, torch.tensor(expected))


@pytest.mark.parametrize("attend", IMPLEMENTATIONS)
def test_a_query_of_nans_spoils_its_own_row_only(attend):
    world = World(MIXED)
    clean = world.attend(attend)
    world.q[3, 1] = math.nan
    out = world.attend(attend)
    assert out[3, 1].isnan().all()
    out[3, 1] = clean[3, 1]
    torch.testing.assert_close(out, clean)


@pytest.mark.parametrize("attend", IMPLEMENTATIONS)
@pytest.mark.parametrize("window", [ALL_KEYS, 4])
def test_a_key_of_nans_spoils_the_rows_that_see_it_and_no_other(attend, window):
    world = World(MIXED, block_size=1)
    clean = world.attend(attend, window)
    world.keys[world.tables[2, 25].long()] = math.nan  # of seven queries from position 23 on, the third
    out = world.attend(attend, window)
    seeing = range(12, 17) if window == ALL_KEYS else range(12, 16)
    assert out[list(seeing)].isnan().all()
    out[list(seeing)] = clean[list(seeing)]
    torch.testing.assert_close(out, clean)


@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(1, 1), (9, 3), (4, 4), (8, 1), (14, 2)])
@pytest.mark.parametrize("head_dim", [2, 24, 64, 80, 96, 128])
@pytest.mark.parametrize("kernel", [paged_attention_cpu, gathered])
def test_the_kernel_takes_any_group_and_head_size(kernel, num_heads, num_kv_heads, head_dim):
    shape = {"num_heads": num_heads, "num_kv_heads": num_kv_heads, "head_dim": head_dim}
    world = World(MIXED, **shape)
    torch.testing.assert_close(world.attend(kernel), world.attend(paged_attention_spec), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("block_size", [1, 16, 256])
@pytest.mark.parametrize("window", [ALL_KEYS, 70])
@pytest.mark.parametrize("kernel", [*KERNELS, attention_cpu])
def test_the_kernel_takes_long_chunks_and_any_block(kernel, block_size, window):
    world = World([(250, 250), (200, 1), (190, 65), (64, 64), (65, 1)], block_size=block_size)
    torch.testing.assert_close(
        world.attend(kernel, window), world.attend(paged_attention_spec, window), atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize("kernel", KERNELS)
def test_scores_of_any_size_do_not_overflow(kernel):
    world = World(MIXED)
    world.q *= 1e3
    out = world.attend(kernel)
    assert out.isfinite().all()
    torch.testing.assert_close(out, world.attend(paged_attention_spec), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_the_answer_does_not_depend_on_the_number_of_threads(num_threads):
    world, before = World([*MIXED, (150, 100)]), torch.get_num_threads()
    torch.set_num_threads(num_threads)
    out = world.attend(paged_attention_cpu)
    torch.set_num_threads(before)
    assert torch.equal(out, world.attend(paged_attention_cpu))


@st.composite
def chunk(draw):
    num_keys = draw(st.integers(0, 80))
    return num_keys, draw(st.integers(0, num_keys))


@given(
    chunks=st.lists(chunk(), max_size=5),
    group_size=st.integers(1, 5),
    num_kv_heads=st.integers(1, 3),
    head_dim=st.integers(1, 20).map(lambda n: 2 * n),
    block_size=st.integers(1, 9),
    window=st.one_of(st.just(ALL_KEYS), st.integers(1, 90)),
    seed=st.integers(0, 99),
)
def test_kernel_and_specification_agree(chunks, group_size, num_kv_heads, head_dim, block_size, window, seed):
    shape = {"num_heads": group_size * num_kv_heads, "num_kv_heads": num_kv_heads, "head_dim": head_dim}
    world = World(chunks, **shape, block_size=block_size, seed=seed)
    expected = world.attend(paged_attention_spec, window)
    for kernel in KERNELS:
        torch.testing.assert_close(world.attend(kernel, window), expected, atol=1e-5, rtol=1e-5)


def test_what_the_kernel_cannot_read_is_refused_with_its_shape():
    world = World(MIXED)
    world.q = world.q.half()
    with pytest.raises(AssertionError, match="float16 is not float32"):
        world.attend(paged_attention_cpu)
    world.q = torch.randn(23, 4, 16)[..., ::2]
    with pytest.raises(AssertionError, match="strides"):
        world.attend(paged_attention_cpu)
    world.q = torch.randn(23, 3, 8)
    with pytest.raises(AssertionError, match=r"q torch.Size\(\[23, 3, 8\]\)"):
        world.attend(paged_attention_cpu)


def test_keys_are_gathered_from_a_pool_too_large_to_be_copied():
    pool = torch.arange(2 * 4 * 3.0).reshape(1, 2, 4, 3).expand(10**12, -1, -1, -1)  # every block is the same one
    found = gather(pool, None, torch.tensor([7, 10**11]), 6)
    torch.testing.assert_close(found, torch.cat([pool[0], pool[0]], dim=1)[:, :6])
