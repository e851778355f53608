"""Two functions and a paragraph turn rows into blocks: who gets memory, who gives it back, who comes in.

**Part 1: the block manager.** A pool of `num_blocks` blocks of `block_size` slots; a slot holds the keys and values of
one token. `seq.block_table` lists the blocks of a sequence, in the order of its tokens.

    block_size 4    seq has 6 tokens, computed 4, block_table [ 5 ]
    reserve(seq, 2)     tokens 4 and 5 need a slot each: one block more, block_table [ 5, 2 ]    True
    reserve(seq, 40)    ten blocks more, and two are free: nothing happens                       False
    release(seq)        blocks 2, then 5 go to the end of the free queue; nothing is computed any more

The pool's verbs are `self.pool.allocate()`, which takes the block that has been free the longest, and
`self.pool.free(block)`. `self.num_blocks_for(n)` rounds up. Two things to think about: what must be true after a
`reserve` that failed, and why `release` gives the last block back first.

**Part 2: the scheduler.** With `reserve`, who may run? A new batch is formed only when nobody of the last one is left.
Whoever has waited longest comes first, as long as the blocks of its whole prompt are free. Then everybody in the batch
gets room for what it has to run; if there is none, the newest gives way.

    self.begin()    a new, empty plan            self.head()                  who is next, if there is a seat
    self.admit()    the head starts running      self.make_room(seq, plan)    blocks for seq's share, or False
    plan.add(seq)   seq runs in this step        self.running                 who runs, oldest first
"""

from levels.exercises import Part

PARTS = (
    Part(
        "minipaged/blocks.py",
        ("BlockManager.reserve", "BlockManager.release"),
        ("tests/test_blocks.py",),
    ),
    Part(
        "levels/02_paged_attention/engine.py",
        ("Scheduler.schedule",),
        ("tests/test_golden_traces.py -k 02_", "tests/test_scheduler.py -k Level02"),
    ),
)
HINTS = {
    "a failed reserve changes nothing": "Count the blocks that are missing before you take the first one. If they are "
    "not all there, leave at once: the table and the queue have to look as they did.",
    "it fails only when blocks are short": "Compare what is missing with `self.num_free_blocks`. As many as are "
    "free is enough; and whoever needs nothing gets it even when nothing is free.",
    "not a step early": "A block is due when a token has nowhere to go, not when the last block has become full.",
    "not a step late": "The tokens of this step need their slots now: count `num_computed_tokens + num_tokens`.",
    "a table grows at its end": "Append to `seq.block_table` what `self.pool.allocate()` gives, one by one.",
    "the tail is handed out before its head": "Whoever is asked for a block takes the one that has been free longest. "
    "Free the last block of the table first: a tail without its head is of no use to anybody.",
    "free + held = pool": "A block is in the free queue or in a table, never in both and never in neither.",
    "every reference is somebody's": "The pool counts who holds each block. A table emptied without "
    "`self.pool.free`, or a block that was freed and stayed in its table, breaks the count.",
    "no slot is owned twice": "Two tables hold one block: a block was handed out before it was given back.",
    "freed twice": "Empty the table once its blocks are given back, or the next `release` gives them back again.",
    "a batch runs to its end": "Form a new batch only when nobody of the last one is left: `self.running` is empty.",
    "IndexError": "Somebody runs tokens that it has no blocks for: reserve first, for as many tokens as will run.",
    "nobody overtakes": "Only `self.head()` may come in. If there is no room for it, the others wait behind it.",
    "whoever comes in may": "At level 02 nobody joins a batch that is under way, and whoever comes in needs the blocks "
    "of its whole prompt, not only of its first token.",
    "whoever could come in does": "Seats, or blocks, were free, and the head of the queue was not let in.",
    "no progress": "Your `schedule` returned a plan without chunks although somebody waits or runs.",
    "the steps are those on the page": "Look at the first step that differs: who ran how much, who came in, who gave "
    "way? The page says what it is about.",
}
