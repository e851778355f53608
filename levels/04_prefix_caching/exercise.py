"""Sharing is two verbs: adopt what is known of a beginning, publish what you filled.

A block that is full of known tokens gets a name, `self.name(seq, i)`: a hash over its tokens and over everything before
them. `self.block_of` says which block has a name, `self.name_of` which name a block has.

    publish(seq, 10)    block_size 4: blocks 0 and 1 of seq are full, or will be when this step has run. Name them.
    adopt(seq)          another one begins with the same ten tokens: it borrows both, and reserves the rest

`adopt` is all or nothing. It borrows with `self.pool.share(block)`, puts the borrowed blocks first into the table,
counts their tokens as computed, and `self.reserve`s room for the rest. The trap: a known block that nobody holds lies
in the free queue. Borrow it, and it is not free any more: it must not be counted twice.

    self.find(seq)           seq's known blocks           self.num_free_blocks       how many are free
    self.num_blocks_for(n)   how many n tokens need       self.pool.ref_counts[b]    how many hold b; 0: it is free
    self.pool.share(b)       one holder more              self.pool.put_back(b)      given up, never of use

`publish` begins where it ended the last time: `seq.num_named_blocks`. If a name is taken by another block already,
seq's is a duplicate: seq changes over to the one that was named first and gives its own back (`self.pool.put_back`, as
nobody could find it). But not while it still writes its own (its tokens are not computed yet): then it stops here, and
comes back to it in the next step.
"""

from levels.exercises import Part

PARTS = (
    Part(
        "minipaged/prefix.py",
        ("PrefixBlockManager.adopt", "PrefixBlockManager.publish"),
        ("tests/test_prefix.py", "tests/test_golden_traces.py -k 04_"),
    ),
)
HINTS = {
    "a refused call changes nothing": "Find out whether there is room before you borrow the first block. Known blocks "
    "that nobody holds (`ref_counts` 0) are in the free queue: they are needed, so they are not free for the rest.",
    "whoever was refused holds nothing": "A refused `adopt` leaves the table empty.",
    "room for the whole prompt, no more": "The table holds the borrowed blocks, then what `reserve` adds for the "
    "tokens that are left. What was borrowed counts as computed, or it is reserved once more.",
    "one token is left to run": "Somebody has to say what comes next: `self.find` leaves a token; do not borrow more.",
    "every reference is somebody's": "Each table that holds a block counts: `self.pool.share` for whatever is borrowed "
    "or changed over to, `self.pool.put_back` for a duplicate that is given up.",
    "free + held = pool": "A block is in the free queue exactly when nobody holds it: borrow with `self.pool.share`.",
    "no slot is written twice in a step": "Two sequences write into one block. A borrowed block is full and computed: "
    "its tokens are not run again (`seq.num_computed_tokens`). And while seq still writes its own block, it keeps it.",
    "says whether it could": "`adopt` returns True or False: once the borrowed blocks are counted, what `self.reserve` "
    "says.",
    "everybody reads their own text": "Somebody reads what it never wrote: a block was named before it was full, or "
    "changed over to while the other one was still to be written.",
    "block_of and name_of agree": "Whoever gives a block a name enters it twice: `block_of[name]`, `name_of[block]`. "
    "A name that is taken stays with the block that has it.",
    "a name is its content": "Only full blocks have names: `num_tokens // self.block_size` of them. And a block keeps "
    "its name only as long as nobody else's tokens are written to it.",
    "a tail is handed out before its head": "Borrow first, then `reserve` the rest: whoever reserves first may be "
    "handed the very blocks that it was about to borrow, and they lose their names.",
    "twins that fill a block in one step": "Two filled equal blocks in one step, and both kept their own. The second "
    "changes over in the step after: do not count a block as named (`num_named_blocks`) before it is one with a name.",
    "a head outlives its tail": "Name the blocks in their order, and change over to the one that was named first.",
    "a_duplicate_is_given_up": "Where a name is taken, put the block that has it into the table, share it, and free "
    "your own: otherwise a known head may be handed out while its tail is still held.",
    "a duplicate that is given up": "`self.pool.put_back` puts it at the front of the queue: nobody could find it, so "
    "it is handed out before blocks that somebody may find. `free` puts it at the end.",
    "of_48_known_tokens": "Whatever is full and known is found, as long as one token is left to run.",
    "a_prompt_that_is_known_to_the_last_token": "The second one should find the first block and run the rest.",
    "full_blocks_are_found": "Publish when the last token of a block is scheduled, and adopt what has a name.",
}
