"""Whatever the order of events: no block is lost, none is given twice, and a failed reserve leaves no trace."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from minipaged.blocks import BlockManager, BlockPool
from minipaged.sampling_params import SamplingParams
from minipaged.sequence import Sequence

NUM_BLOCKS, SIZE = 6, 2


def sequence(num_tokens, name=""):
    return Sequence(name, [7] * num_tokens, SamplingParams(), max_len=100)


def computed(manager, num_tokens):
    """A sequence that reserved num_tokens and ran them all."""
    seq = sequence(num_tokens)
    assert manager.reserve(seq, num_tokens)
    seq.num_computed_tokens = num_tokens
    return seq


class BlockPoolMachine(RuleBasedStateMachine):
    """The model beside it: free blocks in the order they were freed, and how many hold each of the others."""

    def __init__(self):
        super().__init__()
        self.pool = BlockPool(NUM_BLOCKS)
        self.free, self.held = list(range(NUM_BLOCKS)), {}

    @precondition(lambda self: self.free)
    @rule()
    def allocate(self):
        block = self.pool.allocate()
        assert block == self.free.pop(0), "the least recently freed is handed out first"
        self.held[block] = 1

    @rule(block=st.integers(0, NUM_BLOCKS - 1))
    def share(self, block):
        self.pool.share(block)
        self.held[block] = self.held.get(block, 0) + 1
        self.free = [other for other in self.free if other != block]

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def free_one(self, data):
        block = data.draw(st.sampled_from(sorted(self.held)))
        self.pool.free(block)
        self.held[block] -= 1
        if self.held[block] == 0:
            del self.held[block]
            self.free.append(block)

    @precondition(lambda self: self.free)
    @rule(data=st.data())
    def nobody_frees_twice(self, data):
        block = data.draw(st.sampled_from(self.free))
        with pytest.raises(AssertionError, match=f"block {block} freed twice"):
            self.pool.free(block)

    @invariant()
    def free_and_held_partition_the_pool(self):
        assert list(self.pool.free_block_queue) == self.free
        assert len(self.pool.free_block_queue) == len(self.free)
        assert {block: n for block, n in enumerate(self.pool.ref_counts) if n} == self.held


class BlockManagerMachine(RuleBasedStateMachine):
    """The model beside it: whose slot each is, by (sequence, position); a foreign slot is never written."""

    WORLD = f"{NUM_BLOCKS} blocks of {SIZE} slots"

    def __init__(self):
        super().__init__()
        self.manager = BlockManager(NUM_BLOCKS, SIZE)
        self.live: list[Sequence] = []
        self.owners: dict[int, tuple[Sequence, int]] = {}

    def state(self, seq):
        return list(seq.block_table), list(self.manager.pool.free_block_queue), list(self.manager.pool.ref_counts)

    @rule(num_tokens=st.integers(1, 15))
    def arrive(self, num_tokens):
        seq = sequence(num_tokens, name=str(len(self.live)))
        if self.reserve(seq, num_tokens):
            self.live.append(seq)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), num_new=st.integers(0, 3))
    def grow(self, data, num_new):
        seq = data.draw(st.sampled_from(self.live))
        seq.tokens += [7] * num_new
        self.reserve(seq, seq.num_pending)

    def reserve(self, seq, num_tokens):
        needed = max(0, -(-(seq.num_computed_tokens + num_tokens) // SIZE) - len(seq.block_table))
        before, oldest = self.state(seq), list(self.manager.pool.free_block_queue)[:needed]
        done = self.manager.reserve(seq, num_tokens)
        assert done == (needed <= len(before[1])), "it fails only when blocks are short"
        if done:
            assert seq.block_table == before[0] + oldest, "a table grows at its end, by the least recently freed"
        else:
            assert self.state(seq) == before, "a failed reserve changes nothing"
        return done

    @precondition(lambda self: self.live)
    @rule(data=st.data(), num_tokens=st.integers(1, 4))
    def advance(self, data, num_tokens):
        seq = data.draw(st.sampled_from(self.live))
        room = len(seq.block_table) * SIZE - seq.num_computed_tokens
        for position in range(
            seq.num_computed_tokens, seq.num_computed_tokens + min(num_tokens, seq.num_pending, room)
        ):
            slot = seq.block_table[position // SIZE] * SIZE + position % SIZE
            owner = self.owners.get(slot)
            assert owner is None or owner[0] not in self.live or owner == (seq, position), "no slot is owned twice"
            self.owners[slot] = (seq, position)
            seq.num_computed_tokens += 1

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def leave(self, data):
        seq = data.draw(st.sampled_from(self.live))
        table, queue = list(seq.block_table), list(self.manager.pool.free_block_queue)
        num_tokens = len(seq.tokens)
        self.manager.release(seq)
        assert list(self.manager.pool.free_block_queue) == queue + table[::-1], "the tail is handed out before its head"
        assert (seq.block_table, seq.num_computed_tokens, len(seq.tokens)) == ([], 0, num_tokens)
        self.live.remove(seq)

    @invariant()
    def free_and_held_partition_the_pool(self):
        self.manager.check_integrity(self.live)
        held = [block for seq in self.live for block in seq.block_table]
        assert sorted([*held, *self.manager.pool.free_block_queue]) == list(range(NUM_BLOCKS))
        assert self.manager.num_free_blocks == NUM_BLOCKS - len(held)

    @invariant()
    def everybody_finds_their_own_tokens(self):
        for seq in self.live:
            for p in range(seq.num_computed_tokens):
                assert self.owners[seq.block_table[p // SIZE] * SIZE + p % SIZE] == (seq, p)


TestBlockPool = BlockPoolMachine.TestCase
TestBlockManager = BlockManagerMachine.TestCase
TestBlockPool.settings = TestBlockManager.settings = settings(stateful_step_count=25)


def test_nothing_is_taken_from_an_empty_pool():
    pool = BlockPool(1)
    pool.allocate()
    with pytest.raises(AssertionError, match="no block is free"):
        pool.allocate()


def test_a_block_that_two_hold_is_free_only_after_both_gave_it_back():
    pool = BlockPool(2)
    block = pool.allocate()
    pool.ref_counts[block] += 1
    pool.free(block)
    assert block not in pool.free_block_queue
    pool.free(block)
    assert list(pool.free_block_queue) == [1, 0]


@pytest.mark.parametrize("num_tokens", [3, 4, 5, 8])
def test_before_every_forward_a_sequence_owns_exactly_the_blocks_of_its_tokens(num_tokens):
    manager = BlockManager(num_blocks=4, block_size=4)
    seq = computed(manager, num_tokens)
    for length in range(num_tokens + 1, num_tokens + 7):
        seq.tokens.append(7)
        assert len(seq.block_table) == -(-(length - 1) // 4), "not a step early"
        assert manager.reserve(seq, 1)
        assert len(seq.block_table) == -(-length // 4), "not a step late"
        seq.num_computed_tokens += 1


@pytest.mark.parametrize(("num_right", "num_blocks"), [(0, 2), (1, 2), (3, 2), (4, 3)])
def test_room_for_guesses_that_were_wrong_is_given_back(num_right, num_blocks):
    manager = BlockManager(num_blocks=9, block_size=4)
    seq = computed(manager, 5)
    assert manager.reserve(seq, 4)
    seq.num_computed_tokens += num_right
    last = seq.block_table[-1]
    manager.settle(seq)
    assert (len(seq.block_table), manager.num_free_blocks) == (num_blocks, 9 - num_blocks)
    assert num_blocks == 3 or manager.pool.allocate() == last, "what nobody used is the first to be handed out"


def test_a_pool_that_is_exactly_full_serves_and_one_token_more_does_not():
    manager = BlockManager(num_blocks=4, block_size=4)
    assert not manager.reserve(sequence(17), 17)
    seq = computed(manager, 16)
    assert manager.num_free_blocks == 0
    assert manager.reserve(seq, 0), "who needs nothing gets it even when nothing is left"


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda manager, seq: manager.pool.free_block_queue.popleft(), r"free \+ held = pool"),
        (lambda manager, seq: seq.block_table.pop(), "every reference is somebody's"),
        (lambda manager, seq: seq.block_table.append(seq.block_table[0]), "every reference is somebody's"),
        (lambda manager, seq: manager.pool.free_block_queue.append(0), r"free \+ held = pool"),
        (lambda manager, seq: setattr(seq, "num_computed_tokens", 5), "every computed token has a slot"),
    ],
)
def test_damage_is_named_by_the_integrity_check(damage, sentence):
    manager = BlockManager(NUM_BLOCKS, SIZE)
    seq = computed(manager, 4)
    manager.check_integrity([seq])
    damage(manager, seq)
    with pytest.raises(AssertionError, match=sentence):
        manager.check_integrity([seq])
