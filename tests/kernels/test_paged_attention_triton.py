"""The Triton kernel against its specification in float32; keys that nobody wrote are NaN, results lie between walls."""

import bdb
import inspect
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minipaged.kernels import paged_attention_triton
from minipaged.kernels.paged_attention_triton import Tiles, choose_splits, choose_tiles, paged_attention
from tests.kernels.guard import DEVICE, DTYPES, assert_close, guarded
from tests.kernels.pool import World, far_apart, worlds

LARGEST = 4.5  # no value drawn is larger
TILES = [None, Tiles(16, 32, 1, 4, 1), Tiles(32, 16, 2, 4, 1), Tiles(64, 16, 4, 4, 1)]
by_tiles = pytest.mark.parametrize("tiles", TILES, ids=lambda tiles: f"{tiles and tiles.splits} splits")


def check(world, tiles=None):
    tensors = world.tensors()
    out = world.attend(tensors, tiles)
    assert_close(out, world.expected(tensors), LARGEST)
    return out


@given(worlds(), st.sampled_from(TILES))
@settings(max_examples=24)
def test_any_ragged_batch_gives_what_the_specification_gives(world, tiles):
    check(world, tiles)


@by_tiles
@pytest.mark.parametrize("length", [1, 13, 15, 16, 17, 31, 32, 33])
def test_slots_behind_the_last_key_are_never_read(length, tiles):
    check(World((length,), (1,), block_size=4), tiles)  # the pool is NaN wherever no key was written


@by_tiles
def test_who_has_no_keys_gets_zeros_and_the_others_what_is_theirs(tiles):
    world = World((3, 0, 5), (1, 1, 2))
    out = check(world, tiles)
    assert (out[1] == 0).all()


@by_tiles
def test_a_row_that_sees_nothing_is_zero(tiles):
    world = World((2,), (5,))  # the first three tokens would have positions below 0
    out = world.attend(world.tensors(), tiles)
    assert (out[:3] == 0).all()
    assert not out.isnan().any()


@pytest.mark.parametrize("head_dim", [16, 17, 24, 80, 96, 120, 256])
def test_a_head_may_have_any_size_up_to_256(head_dim):
    check(World((19, 6), (3, 1), head_dim=head_dim))


@pytest.mark.parametrize("group_size", [1, 2, 3, 5, 7, 9, 16, 17, 20])
def test_a_kv_head_may_serve_any_number_of_query_heads(group_size):
    check(World((19, 6), (19, 1), num_kv_heads=1, group_size=group_size))


@pytest.mark.parametrize("block_size", [1, 3, 8, 16, 24, 256, 2048])
def test_a_block_may_have_any_size_up_to_a_whole_row(block_size):
    check(World((67, 40), (2, 1), block_size=block_size))


@pytest.mark.parametrize(("query_len", "tiles"), [(6, None), (1, None), (3, Tiles(16, 16, 2, 4, 1))])
def test_a_window_of_four_shows_each_token_itself_and_the_three_before_it(query_len, tiles):
    world = World((6,), (query_len,), 1, 1, window=4)
    q, keys, values, *rest = world.tensors()
    q = torch.zeros_like(q)  # every key seen weighs the same
    table = rest[0][0].long()
    values[table[0], 0, :6] = torch.eye(16)[:6].to(DEVICE)
    out = world.attend([q, keys, values, *rest])
    visible = (out[:, 0] > 0).sum(-1).tolist()
    assert visible == [1, 2, 3, 4, 4, 4][-query_len:]
    check(world, tiles)


@by_tiles
def test_a_window_counts_from_each_token_whatever_the_chunk(tiles):
    for window in (1, 16, 17):
        check(World((70, 20), (9, 20), 1, window=window), tiles)


def test_blocks_that_fell_out_of_the_window_are_never_read():
    world = World((50,), (1,), window=6)
    tensors = world.tensors()
    expected = world.expected(tensors)
    tables = tensors[3]
    tables[0, :5] = 10**6  # positions 0 .. 40 are nowhere
    assert_close(world.attend(tensors), expected, LARGEST)


def test_views_of_a_fused_qkv_and_of_an_interleaved_pool_are_as_good_as_copies():
    world = World((13, 21), (13, 1), head_dim=24)
    q, keys, values, *rest = world.tensors()
    qkv = torch.full((len(q), q.shape[1] + 4, 24), float("nan"), device=DEVICE)
    qkv[:, 1:-3] = q
    pool = torch.stack((keys, values), dim=1)  # [B, 2, K, P, D]
    by_slot = pool.permute(0, 3, 1, 2, 4).contiguous().permute(2, 0, 3, 1, 4)  # stored [B, P, 2, K, D]
    expected = world.attend([q, keys, values, *rest])
    assert torch.equal(world.attend([qkv[:, 1:-3], pool[:, 0], pool[:, 1], *rest]), expected)
    assert torch.equal(world.attend([q, *by_slot, *rest]), expected)


def test_wide_tables_are_read_by_their_stride():
    world = World((13, 21), (2, 1))
    tensors = world.tensors()
    expected, tables = world.expected(tensors), tensors[3]
    tensors[3] = torch.cat((tables, torch.full_like(tables, 10**6)), dim=1)[:, : tables.shape[1]]
    assert_close(world.attend(tensors), expected, LARGEST)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_cutting_a_long_walk_into_splits_changes_nothing_but_rounding(dtype):
    world = World((200, 40, 1), (1, 2, 1), dtype=dtype, num_kv_heads=1)
    for splits in (1, 2, 8):
        check(world, Tiles(16, 32, splits, 4, 1))


def test_large_scores_do_not_overflow():
    world = World((40,), (4,))
    q, *rest = world.tensors()
    tensors = [300 * q, *rest]
    assert_close(world.attend(tensors), world.expected(tensors), 8 * LARGEST)


@pytest.mark.skipif(DEVICE == "cuda", reason="borrows address space without memory behind it, which a GPU has not")
def test_offsets_into_the_pool_are_64_bits_wide():
    world = World((40,), (3,), num_kv_heads=1, block_size=16, dtype=torch.float16)
    q, *pool, tables, starts, lens = world.tensors()
    blocks = tables[0, :3].long()
    tables[0, :3] = torch.arange(3)
    near = [t[blocks] for t in pool]
    far = [t.copy_(part) for t, part in zip(far_apart(2, *near[0].shape[1:]), near, strict=True)]
    expected = world.expected([q, *near, tables, starts, lens])
    assert_close(world.attend([q, *far, tables, starts, lens]), expected, LARGEST)


def test_only_a_long_walk_of_few_programs_is_split():
    device = torch.device("cuda") if DEVICE == "cuda" else torch.device("cpu")
    assert choose_splits(8, 100, device) == 1
    splits = choose_splits(1, 100_000, device)
    assert splits == 32 if DEVICE == "cuda" else 1
    assert splits & (splits - 1) == 0


@given(
    st.integers(1, 71),
    st.integers(1, 5000),
    st.sampled_from([16, 64, 128, 256]),
    st.sampled_from(DTYPES),
    st.sampled_from([None, torch.int8]),
)
def test_a_tile_holds_a_whole_group_and_a_power_of_two_of_rows(group_size, max_query_len, head_dim, dtype, kept):
    q = torch.empty(1, group_size, head_dim, dtype=dtype, device="meta")
    keys = torch.empty(1, 1, 8, head_dim, dtype=kept or dtype, device="meta")
    tiles = choose_tiles(q, keys, 4, max_query_len, 4096)
    assert tiles.rows >= max(16, group_size)
    assert tiles.rows & (tiles.rows - 1) == 0
    most = 64 if kept and head_dim > 64 else 128
    assert tiles.rows <= max(most, 2 * group_size), "what registers hold"
    assert tiles.warps == 8 or tiles.rows <= 32


def test_nothing_to_do_is_fine():
    world = World((3, 4), (1, 1))
    q, keys, values, tables, *_ = world.tensors()
    starts, lens = torch.zeros(1, dtype=torch.int32, device=DEVICE), torch.zeros(0, dtype=torch.int32, device=DEVICE)
    assert guarded(paged_attention, q[:0], keys, values, tables[:0], starts, lens, 4, 0, 0).shape == q[:0].shape


WRONG = {
    "values has shape": lambda t: t | {"values": t["values"][:, :, :4]},
    "keys has shape": lambda t: t | {"keys": t["keys"][..., :8]},
    "tables is torch.int64, expected torch.int32": lambda t: t | {"tables": t["tables"].long()},
    r"query_start_loc has shape \(2,\), expected \(3,\)": lambda t: t | {"starts": t["starts"][:-1]},
    "4 query heads of 16 over 3 kv heads": lambda t: (
        t | {name: torch.cat((t[name], t[name][:, :1]), dim=1) for name in ("keys", "values")}
    ),
    "q has stride": lambda t: t | {"q": t["q"].transpose(1, 2).contiguous().transpose(1, 2)},
    "values is torch.float16, expected torch.float32": lambda t: t | {"values": t["values"].half()},
}


@pytest.mark.parametrize("message", WRONG)
def test_what_does_not_fit_is_refused_by_name(message):
    world = World((3, 4), (1, 1))
    names = ("q", "keys", "values", "tables", "starts", "lens")
    tensors = WRONG[message](dict(zip(names, world.tensors(), strict=True)))
    with pytest.raises(ValueError, match=message):
        paged_attention(*tensors.values(), world.window, 1, 4)


@pytest.mark.skipif(DEVICE == "cuda", reason="only the interpreter can be stepped through")
def test_a_breakpoint_inside_the_kernel_stops():
    lines, first = inspect.getsourcelines(paged_attention_triton.walk.fn)
    wanted = first + next(i for i, line in enumerate(lines) if line.strip().startswith("weights,"))
    stops = []

    class Debugger(bdb.Bdb):
        def user_line(self, frame):
            if self.break_here(frame):
                stops.append({name: tuple(frame.f_locals[name].shape) for name in ("b_q", "scores")})
            self.set_continue()

    world = World((3,), (1,))
    tensors, debugger = world.tensors(), Debugger()
    assert debugger.set_break(inspect.getsourcefile(paged_attention_triton.walk.fn), wanted) is None
    debugger.runcall(world.attend, tensors, Tiles(16, 32, 1, 4, 1))
    assert stops == [{"b_q": (16, 16), "scores": (16, 32)}] * 2  # once for each kv head


def test_the_same_numbers_whoever_else_is_in_the_batch():
    together = World((33, 7, 20), (2, 1, 3))
    q, keys, values, tables, starts, lens = together.tensors()
    out = together.attend([q, keys, values, tables, starts, lens])
    alone = replace(together, lens=(20,), query_lens=(3,))
    starts, lens = starts[:2] * 0 + torch.tensor([0, 3], dtype=torch.int32, device=DEVICE), lens[2:]
    assert torch.equal(alone.attend([q[3:], keys, values, tables[2:], starts, lens]), out[3:])
