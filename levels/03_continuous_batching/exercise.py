"""Ten lines decide, at every step, who runs and how much: write `schedule`.

A step may run `self.config.max_num_batched_tokens` tokens, and at most `self.config.max_chunk_len` of one sequence. Out
of this one budget:

1. Those who run are served first, in their order. Each needs room for its share; if there is none, the last in line
   gives way, and whoever gave way itself does not run in this step.
2. What is left goes to those who wait, strictly from the head of the queue, while something is left of the budget,
   nobody had to give way in this step, there is a seat, and the blocks of the head's *whole* prompt are free.

    budget 8      a runs, its newest token             a:1
                  b waits with a prompt of 9           a:1 b:7      its other two tokens come next time
                  c waits behind b                     nothing: the budget is spent

    self.begin(budget, max_chunk_len)   a new plan          plan.add(seq)      seq runs its share, out of the budget
    self.make_room(seq, plan)           blocks, or False    plan.is_open       budget is left and nobody gave way
    self.head()                         who is next         self.admit()       the head starts running
    self.blocks.reserve(seq, n)         blocks for n tokens, all or nothing
"""

from levels.exercises import Part

PARTS = (
    Part(
        "levels/03_continuous_batching/engine.py",
        ("Scheduler.schedule",),
        ("tests/test_golden_traces.py -k 03_", "tests/test_scheduler.py -k Level03"),
    ),
)
HINTS = {
    "running before waiting, each its share": "Serve `self.running` first, from the same budget, and only then the "
    "queue. A chunk is cut by the budget and by max_chunk_len, by nothing else: not by how many blocks are free.",
    "whoever comes in may": "Somebody came in who was not to: without budget, without a seat, or without free blocks "
    "for its whole prompt (`head.num_pending` tokens, not only for the chunk that it runs now).",
    "whoever could come in does": "There was budget, a seat and enough blocks, and the head of the queue still waits.",
    "nothing is admitted in a step that preempted": "Whoever gave way would take the room of whoever comes in. Ask "
    "`plan.is_open`, which knows of both budget and crowding.",
    "the head is not overtaken": "Only `self.head()` may come in; those behind it wait.",
    "a prompt in chunks says one token at its end": "A chunk is what the budget leaves: first those who run take their "
    "share, then the queue, from its head. If only the last column differs: whoever comes in holds the blocks of its "
    "whole prompt from then on, not only those of its first chunk.",
    "the budget is shared in order": "Serve `self.running` first, and give the queue what is left of the budget.",
    "IndexError": "Somebody runs tokens that it has no blocks for. Whoever runs on needs `make_room` before "
    "`plan.add`; whoever comes in needs the blocks of its whole prompt, `head.num_pending`.",
    "nobody overtakes": "Only `self.head()` may come in. If there is no room for it, those behind it wait too, or a "
    "long prompt would wait for ever.",
    "nobody gives way without need": "Somebody lost its blocks although there was room, or although it was not to run.",
    "whoever stays finds room": "Somebody runs without blocks for its tokens: call `make_room` before `plan.add`.",
    "everybody holds the blocks they need": "Blocks were reserved for somebody who then did not run: ask for blocks "
    "last, when all else is fulfilled.",
    "the budget is never exceeded": "Give `begin` the budget; `plan.add` takes each share from it.",
    "no progress": "Your `schedule` returned a plan without chunks although somebody waits or runs. Whoever comes in "
    "runs its first chunk in the same step: `plan.add`.",
    "the steps are those on the page": "Look at the first step that differs: who ran how much, who came in, who gave "
    "way? Everybody comes in who can, one after the other, until the budget, the seats or the blocks are used up.",
}
