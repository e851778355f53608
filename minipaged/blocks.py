"""Memory is handed out in blocks, on demand; nobody reserves what they might never use.

    free_block_queue   8 3 6 ...              least recently freed first
    block_table of A   [ 5 | 2 | 7 ]          grows on demand; only its last is partly empty, once its prompt is read

    position p of A  ->  slot  block_table[p // block_size] * block_size + p % block_size

The idea is virtual memory's: tokens are bytes, blocks are pages, sequences are processes (PagedAttention, Kwon et al.
2023, section 4.3). This manager remembers nothing: `adopt`, `publish`, `is_sound` and `reset` are level 04's verbs,
which prefix.py fills with life, and `settle` is level 05's. Invariant: a block is in the queue exactly when no table
holds it; ref_counts[b] says how many do (one, until level 04 shares). A reserve or adopt that fails changes nothing.
(From level 02.)"""

from collections import Counter
from collections.abc import Iterable, Iterator

from .sequence import Sequence


class FreeBlockQueue:
    """Least recently freed first; a ring of links, so that a block leaves from anywhere, at one cost in any pool.

    end  ->  8  ->  3  ->  6  ->  end          after[8] = 3, before[3] = 8; end = num_blocks, which is no block"""

    def __init__(self, num_blocks: int):
        self.end, self.num_free = num_blocks, num_blocks
        self.after: list[int] = [*range(1, num_blocks + 1), 0]
        self.before: list[int] = [num_blocks, *range(num_blocks)]

    def __len__(self) -> int:
        return self.num_free

    def __iter__(self) -> Iterator[int]:
        block = self.after[self.end]
        while block != self.end:
            yield block
            block = self.after[block]

    def popleft(self) -> int:
        block = self.after[self.end]
        assert block != self.end, "no block is free"
        self.remove(block)
        return block

    def append(self, block: int) -> None:
        self.link(self.before[self.end], block, self.end)

    def appendleft(self, block: int) -> None:
        self.link(self.end, block, self.after[self.end])

    def link(self, before: int, block: int, after: int) -> None:
        self.before[block], self.after[block] = before, after
        self.after[before] = self.before[after] = block
        self.num_free += 1

    def remove(self, block: int) -> None:
        before, after = self.before[block], self.after[block]
        self.after[before], self.before[after] = after, before
        self.num_free -= 1


class BlockPool:
    """num_blocks blocks, each free or held, all operations O(1)."""

    def __init__(self, num_blocks: int):
        self.ref_counts = [0] * num_blocks
        self.free_block_queue = FreeBlockQueue(num_blocks)

    def allocate(self) -> int:
        block = self.free_block_queue.popleft()
        self.ref_counts[block] = 1
        return block

    def share(self, block: int) -> None:
        """One holder more; a free block leaves the queue, from wherever it stands."""
        if self.ref_counts[block] == 0:
            self.free_block_queue.remove(block)
        self.ref_counts[block] += 1

    def free(self, block: int) -> None:
        assert self.ref_counts[block] > 0, f"block {block} freed twice"
        self.ref_counts[block] -= 1
        if self.ref_counts[block] == 0:
            self.free_block_queue.append(block)

    def put_back(self, block: int) -> None:
        """Undo `allocate`: what was never used is the first to be handed out again, before anything worth keeping."""
        self.ref_counts[block] -= 1
        assert self.ref_counts[block] == 0, f"block {block} put back, and {self.ref_counts[block]} hold it"
        self.free_block_queue.appendleft(block)


class BlockManager:
    """Says where a sequence's keys and values live: `reserve` grows its block table, `release` empties it."""

    def __init__(self, num_blocks: int, block_size: int):
        self.num_blocks, self.block_size = num_blocks, block_size
        self.pool = BlockPool(num_blocks)

    @property
    def num_free_blocks(self) -> int:
        return len(self.pool.free_block_queue)

    @property
    def cached_blocks(self) -> list[int]:
        """Free blocks that are remembered: none are."""
        return []

    def num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def adopt(self, seq: Sequence) -> bool:
        """Blocks for all of seq's tokens, with whatever is known of them: here nothing is. All or nothing."""
        return self.reserve(seq, seq.num_pending)

    def publish(self, seq: Sequence, num_tokens: int) -> None:
        """Let others adopt the full blocks among seq's first num_tokens tokens: nobody can here."""

    def is_sound(self, holders: Iterable[Sequence]) -> bool:
        """Between steps: whether all that was published has been computed. Nothing was."""
        return True

    def reset(self) -> bool:
        """Forget what is known: nothing is."""
        return True

    def reserve(self, seq: Sequence, num_tokens: int) -> bool:
        """Grow seq's block table to hold num_tokens more than are computed. All or nothing."""
        needed = self.num_blocks_for(seq.num_computed_tokens + num_tokens) - len(seq.block_table)
        if needed > self.num_free_blocks:
            return False
        seq.block_table += [self.pool.allocate() for _ in range(needed)]
        return True

    def settle(self, seq: Sequence) -> None:
        """After drafts: publish those that were right, and give back the room of those that were not."""
        self.publish(seq, seq.num_computed_tokens)
        self.trim(seq, seq.num_computed_tokens)

    def trim(self, seq: Sequence, num_tokens: int) -> None:
        """Give back what lies behind seq's first num_tokens tokens and was never used."""
        while len(seq.block_table) > self.num_blocks_for(num_tokens):
            self.pool.put_back(seq.block_table.pop())

    def release(self, seq: Sequence) -> None:
        """Give all of seq's blocks back; its tokens stay, and would have to be computed again."""
        for block in reversed(seq.block_table):  # a tail is useless without its head, so it is handed out first
            self.pool.free(block)
        seq.block_table.clear()
        seq.num_computed_tokens = 0

    def check_integrity(self, holders: Iterable[Sequence]) -> None:
        """Raises AssertionError with the broken invariant's name."""
        holders, counts = list(holders), self.pool.ref_counts
        held = Counter(block for seq in holders for block in seq.block_table)
        assert [held[block] for block in range(self.num_blocks)] == counts, "every reference is somebody's"
        free = {block for block, count in enumerate(counts) if count == 0}
        assert set(self.pool.free_block_queue) == free, "free + held = pool"
        for seq in holders:
            num_slots = len(seq.block_table) * self.block_size
            assert seq.num_computed_tokens <= num_slots, f"request {seq.request_id}: every computed token has a slot"
