"""Sharing is two verbs: adopt what is known of a beginning, publish what you filled.

A block that is full of known tokens gets a name, `self.name(seq, i)`: a hash over its tokens and over everything before
them. `self.block_of` says which block has a name, `self.name_of` which name a block has.

    publish(seq, 10)    block_size 4: blocks 0 and 1 of seq are full, or will be when this step has run. Name them.
    adopt(seq)          another one begins with the same ten tokens: it borrows both, and reserves the rest

`adopt` is all or nothing. It borrows with `self.pool.share(block)`, puts the borrowed blocks first into the table,
counts their tokens as computed, and `self.reserve`s room for the rest. The trap: a known block that nobody holds lies
in the free queue. Borrow it, and it is not free any more: it must not be counted twice. `self.find(seq)` has the known
blocks of seq's beginning.

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
    "everybody_reads_their_own_text": "Somebody reads what it never wrote: a block was named before it was full, or "
    "changed over to while the other one was still to be written.",
    "a_name_is_its_content": "`block_of` and `name_of` have to agree, and only full blocks have names: "
    "`num_tokens // self.block_size` of them.",
    "a head outlives its tail": "Name the blocks in their order, and change over to the one that was named first.",
    "a_duplicate_is_given_up": "Where a name is taken, put the block that has it into the table, share it, and free "
    "your own: otherwise a known head may be handed out while its tail is still held.",
    "of_48_known_tokens": "Whatever is full and known is found, as long as one token is left to run.",
    "a_prompt_that_is_known_to_the_last_token": "The second one should find the first block and run the rest.",
    "full_blocks_are_found": "Publish when the last token of a block is scheduled, and adopt what has a name.",
}
