"""Blocks are named by what they hold and by everything before it, and shared by name.

    tokens    [ a b c d | e f g h | i j ]       name1 = sha256("", abcd)    name2 = sha256(name1, efgh)
    another   [ a b c d | e f g h | x ]         adopt: both names are known, two blocks need no computing

    free_block_queue    8  3  6 ...             a block that nobody holds waits here and still knows its name;
                              ^ found again: taken from the middle; handed out for something new: forgotten

A block is published when its last token is scheduled, not when it has been computed: within a layer all keys and values
of a step are written before any is read, so even two requests admitted in one step share. Where two sequences filled
equal blocks all the same, the one named first stays and the other is given back: a tail never outlives its head, for
whoever holds a named block holds its named parent. A partly filled block is never shared: it has no name, and every
sequence, each choice of a request too, writes its own, so there is nothing to copy before a write (vLLM's choice since
its automatic prefix caching).

Invariant: a name's block holds that text, and its parent's name is known too; only full blocks of prompt or verified
tokens have names; one token is always left to run, for its logits. Names are SHA-256 over the parent's name, the token
ids and extra keys: a salt goes into the first block and so into all that follow. (From level 04.)"""

from array import array
from collections.abc import Iterable
from hashlib import sha256

from .blocks import BlockManager
from .config import EngineConfig
from .sequence import Sequence

ROOT = bytes(32)


def block_name(parent: bytes, token_ids: list[int], extra_keys: tuple[str, ...] = ()) -> bytes:
    """32 bytes; parent is the name of the block before, ROOT for the first."""
    extra = repr(extra_keys).encode("utf-8", "backslashreplace") if extra_keys else b""
    return sha256(parent + array("q", token_ids).tobytes() + extra).digest()


class PrefixBlockManager(BlockManager):
    """Blocks on demand, and what is known already is borrowed."""

    def __init__(self, num_blocks: int, block_size: int):
        super().__init__(num_blocks, block_size)
        self.block_of: dict[bytes, int] = {}
        self.name_of: list[bytes | None] = [None] * num_blocks
        self.void: set[int] = set()  # borrowed, and whoever was to fill them has gone

    @property
    def cached_blocks(self) -> list[int]:
        return [block for block in self.block_of.values() if self.pool.ref_counts[block] == 0]

    def adopt(self, seq: Sequence) -> bool:
        """Borrow the blocks that hold seq's beginning, and reserve the rest of its tokens. All or nothing."""
        known = self.find(seq)
        num_revived = sum(self.pool.ref_counts[block] == 0 for block in known)  # in the queue, but not to give away
        if self.num_blocks_for(len(seq.tokens)) - len(known) > self.num_free_blocks - num_revived:
            return False
        for block in known:
            self.pool.share(block)
        seq.block_table.extend(known)
        seq.num_named_blocks, seq.num_computed_tokens = len(known), len(known) * self.block_size
        return self.reserve(seq, seq.num_pending)

    def find(self, seq: Sequence) -> list[int]:
        """The blocks of seq's longest known beginning that leaves a token to run, and a prompt to be scored."""
        known: list[int] = []
        for i in range(seq.num_adoptable // self.block_size):
            if (block := self.block_of.get(self.name(seq, i))) is None:
                break
            known.append(block)
        return known

    def name(self, seq: Sequence, i: int) -> bytes:
        """Of seq's i-th block; its parents have been named before. Each is hashed once in a sequence's life."""
        if i == len(seq.block_names):
            parent, start = (seq.block_names[-1] if i else ROOT), i * self.block_size
            extra = (seq.cache_salt,) if i == 0 and seq.cache_salt is not None else ()
            seq.block_names.append(block_name(parent, seq.tokens[start : start + self.block_size], extra))
        return seq.block_names[i]

    def reserve(self, seq: Sequence, num_tokens: int) -> bool:
        num_held, done = len(seq.block_table), super().reserve(seq, num_tokens)
        for block in seq.block_table[num_held:]:  # handed out again: what it held is gone
            self.forget(block)
        return done

    def release(self, seq: Sequence) -> None:
        """Also forget what was promised and not kept: names of blocks that a broken step never filled, and all names of
        whoever ended in an error, whose keys may be NaN."""
        num_computed = seq.num_computed_tokens // self.block_size
        self.void.update(block for block in seq.block_table[num_computed:] if self.pool.ref_counts[block] > 1)
        for block in seq.block_table[0 if seq.error else num_computed :]:
            self.forget(block)
        super().release(seq)
        self.void = {block for block in self.void if self.pool.ref_counts[block]}

    def forget(self, block: int) -> None:
        if (name := self.name_of[block]) is not None:
            del self.block_of[name]
            self.name_of[block] = None

    def publish(self, seq: Sequence, num_tokens: int) -> None:
        """Name the full blocks among seq's first num_tokens tokens, which are computed or about to be."""
        for i in range(seq.num_named_blocks, num_tokens // self.block_size):
            block, name = seq.block_table[i], self.name(seq, i)
            known = self.block_of.setdefault(name, block)
            if known == block:
                self.name_of[block] = name
            elif (i + 1) * self.block_size > seq.num_computed_tokens:
                return  # a twin was first, in this very step: seq still writes its own, and changes over in the next
            else:
                self.pool.share(known)
                self.pool.put_back(block)  # nobody could find it: nothing worth keeping is lost with it
                seq.block_table[i] = known
            seq.num_named_blocks = i + 1

    def is_sound(self, holders: Iterable[Sequence]) -> bool:
        """Between steps: False if a step broke, so that somebody may read what was promised and never computed."""
        return not self.void and all(
            seq.num_named_blocks * self.block_size <= seq.num_computed_tokens for seq in holders
        )

    def reset(self) -> bool:
        """Forget every name, as after a change of weights. False, and nothing done, while a block is in use."""
        if self.num_free_blocks < self.num_blocks:
            return False
        self.block_of.clear()
        self.name_of = [None] * self.num_blocks
        return True


def make_block_manager(config: EngineConfig) -> BlockManager:
    """With prefix caching, or the plain one, which remembers nothing."""
    chosen = PrefixBlockManager if config.enable_prefix_caching else BlockManager
    return chosen(config.num_blocks, config.block_size)
