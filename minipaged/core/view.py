"""A look at an engine from outside: who holds which blocks, who waits, what is remembered of those who left.

    holders         r0 [5 2 7]   r1 [5 9]        shared blocks stand in several tables
    cached_blocks   3 8                          free, and found again by whoever begins the same way

Invariant: it only looks, between steps. (From level 07.)"""

from ..sequence import Sequence
from .messages import Holder, View
from .turnable import Turnable


def look(engine: Turnable) -> View:
    return View(
        num_blocks=engine.occupancy.num_blocks,
        holders=[describe(seq) for seq in engine.holders],
        waiting=list(dict.fromkeys(seq.request_id for seq in engine.waiting)),
        cached_blocks=engine.cached_blocks,
    )


def describe(seq: Sequence) -> Holder:
    return Holder(
        request_id=seq.request_id,
        index=seq.choice,
        num_prompt_tokens=seq.num_prompt_tokens,
        num_tokens=len(seq.tokens),
        num_computed_tokens=seq.num_computed_tokens,
        block_table=list(seq.block_table),
    )
