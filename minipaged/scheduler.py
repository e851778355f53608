"""Running sequences first, then the head of the queue, out of one budget of tokens; what runs is known at once.

    budget 32   | r0 1 | r1 1 | r2 1 |  r3: 29 of its 70 prompt tokens  |
                                            `--- named now: r4, admitted in this very step, may share them

Invariant: the sum of scheduled tokens never exceeds the budget; nobody overtakes the head of the queue; nothing is
admitted in a step in which somebody found no room. (Final since level 04.)"""

from .base import SchedulerBase
from .batch import Plan
from .sequence import Sequence


class Scheduler(SchedulerBase):
    """Running sequences first, then the head of the queue, out of one budget of tokens."""

    def schedule(self) -> Plan:
        plan = self.begin(self.config.max_num_batched_tokens, self.config.max_chunk_len)
        if not self.blocks.is_sound(self.ready()):
            self.start_over()
        plan.seats = self.divide(len(self.running))
        for seq in self.ready():
            if self.make_room(seq, plan):
                self.run(seq, plan)
        plan.seats = self.divide(len(self.running) + len(self.waiting))
        while plan.is_open and (head := self.head()) and self.blocks.adopt(head):
            self.run(self.admit(), plan)
        return plan

    def divide(self, num_seqs: int) -> int:
        """A batch's part of so many sequences: the first one would take them all, and the next stage wait for it."""
        return -(-min(num_seqs, self.config.max_num_seqs) // self.max_concurrent_batches)

    def run(self, seq: Sequence, plan: Plan) -> None:
        """Give seq its share, and let others borrow it from now on."""
        num_tokens = plan.add(seq)
        self.blocks.publish(seq, seq.num_computed_tokens + num_tokens)
