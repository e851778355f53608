"""The policies of each level as sentences, each checked in every step.

    Rows (01)         a batch of rows, and nobody leaves before the longest is done
    Batches (02)      blocks on demand; nobody comes in before the whole batch is done
    Continuous (03)   every step anew, out of one budget

What a step may do follows from the state before it: who gave way, who came in, and how much everybody ran."""

import math

from minipaged.config import EngineConfig
from minipaged.trace import StepRecord

from .ledger import Known, Ledger, says, together


class Rows(Ledger):
    """Level 01: a batch of rows, and nobody leaves before the longest is done."""

    def __init__(self, config: EngineConfig):
        super().__init__(config)
        num_slots = config.num_blocks * config.block_size
        self.num_rows = min(config.max_num_seqs, num_slots // config.max_model_len)

    def forget(self, known: Known) -> None:
        if known in self.waiting:
            self.waiting.remove(known)

    def check_decision(self, record: StepRecord) -> None:
        admitted = [] if self.running else self.waiting[: self.num_rows]
        says("a batch is who waited longest, one row each", record.admitted == [k.name for k in admitted], r=record)
        self.waiting = [known for known in self.waiting if known not in admitted]
        self.running = self.running or admitted
        self.ran = {known: known.num_pending for known in self.running if not known.finish_reason}
        due = together(self.ran)
        says("everybody runs what is pending", record.num_scheduled_tokens == due, record=record, due=due)
        says("nobody gives way", record.preempted == [], record=record)

    def check_counts(self, record: StepRecord) -> None:
        slots = (record.reserved_slots, record.used_slots)
        used = sum(known.num_computed for known in self.running)
        says("a row is max_model_len slots", slots == (len(self.running) * self.config.max_model_len, used), r=record)
        ended = [known for known in self.running if known.finish_reason and known in self.ran]
        done = all(known.finish_reason for known in self.running)
        self.running = [] if done else self.running
        self.check_ends(record, ended)
        free = (record.num_free_blocks, record.num_blocks)
        says("rows are free when the batch is done", free == (self.num_rows - len(self.running), self.num_rows), r=free)


class Paged(Ledger):
    """Levels 02 and 03: blocks on demand, preemption by recompute. What differs is who may come in, and the budget."""

    budget: float = math.inf
    max_chunk_len: float = math.inf

    def may_admit(self) -> bool:
        raise NotImplementedError

    @property
    def free(self) -> int:
        return self.config.num_blocks - sum(known.num_blocks for known in self.running)

    def growths(self, kept: list[Known]) -> dict[Known, int]:
        """Blocks that each would need to run its share."""
        shares = self.shares(kept).items()
        return {known: max(0, self.num_blocks(known.num_computed + n) - known.num_blocks) for known, n in shares}

    def shares(self, kept: list[Known]) -> dict[Known, int]:
        """Running before waiting, the budget in that order, each chunk cut by budget and threshold, by nothing else."""
        left, shares = self.budget, {}
        for known in kept:
            shares[known] = int(min(known.num_pending, left, self.max_chunk_len))
            left -= shares[known]
        return shares

    def check_decision(self, record: StepRecord) -> None:
        may_admit = self.may_admit()
        self.check_victims(record)
        self.check_admissions(record, may_admit)
        self.ran = {known: n for known, n in self.shares(self.order).items() if n}
        due, ran = list(together(self.ran).items()), list(record.num_scheduled_tokens.items())
        says("running before waiting, each its share of the budget", ran == due, ran=ran, due=due)
        says("the budget is never exceeded", sum(n for _, n in ran) <= self.budget, ran=ran, budget=self.budget)

    def check_victims(self, record: StepRecord) -> None:
        """Whoever gave way had to, and nobody else had."""
        kept = self.running[: max(0, len(self.running) - len(record.preempted))]
        gone = self.running[len(kept) :][::-1]
        says("the last in line gives way", record.preempted == [known.name for known in gone], record=record)
        says("whoever is alone does not give way", kept or not gone, record=record)
        spare = self.config.num_blocks - sum(known.num_blocks for known in kept)
        if gone:
            needed = sum(self.growths([*kept, gone[-1]]).values())
            says("nobody gives way without need", needed > spare - gone[-1].num_blocks, record=record)
        growths = self.growths(kept)
        says("whoever stays finds room", sum(growths.values()) <= spare, record=record)
        self.settle(gone, growths)

    def settle(self, gone: list[Known], growths: dict[Known, int]) -> None:
        for known, num_blocks in growths.items():
            known.num_blocks += num_blocks
        for known in gone:
            self.running.remove(known)
            known.num_blocks = known.num_computed = 0
            known.num_preemptions += 1
        self.order = list(self.running)
        self.waiting = sorted([*self.waiting, *gone], key=self.key)  # each in its own place

    def check_admissions(self, record: StepRecord, may_admit: bool) -> None:
        admitted = self.waiting[: len(record.admitted)]
        says("nobody overtakes", record.admitted == [known.name for known in admitted], record=record)
        says("nothing is admitted in a step that preempted", not (record.preempted and admitted), record=record)
        for known in admitted:
            says("whoever comes in may", may_admit and self.has_room(known), name=known.name, record=record)
            known.num_blocks = self.num_blocks(known.num_tokens)
            self.waiting.remove(known)
            self.order.append(known)
            self.running = sorted([*self.running, known], key=self.key)
        says("cached tokens are none", set(record.cached_tokens.values()) <= {0}, record=record)
        if may_admit and self.waiting and not record.preempted:
            says("whoever could come in does", not self.has_room(self.waiting[0]), record=record)

    def has_room(self, known: Known) -> bool:
        """A seat, something left of the budget, and blocks for the whole prompt."""
        seat = len(self.running) < self.config.max_num_seqs
        budget = sum(self.shares(self.order).values()) < self.budget
        return seat and budget and self.num_blocks(known.num_tokens) <= self.free

    def check_counts(self, record: StepRecord) -> None:
        used = sum(known.num_computed for known in self.running)
        reserved = (self.config.num_blocks - self.free) * self.config.block_size
        slots = (record.reserved_slots, record.used_slots)
        says("slots are counted during the step", slots == (reserved, used), record=record, due=(reserved, used))
        self.check_waste(record)
        done = [known for known in self.running if known.finish_reason]
        self.running = [known for known in self.running if not known.finish_reason]
        self.check_ends(record, done)
        blocks = (record.num_free_blocks, record.num_blocks)
        says("the finished gave their blocks back", blocks == (self.free, self.config.num_blocks), record=record)

    def check_waste(self, record: StepRecord) -> None:
        """Nothing in general: a prompt that runs in chunks has all its blocks from the start."""


class Batches(Paged):
    """Level 02: nobody comes in before the whole batch is done; no budget."""

    def may_admit(self) -> bool:
        return not self.running

    def check_waste(self, record: StepRecord) -> None:
        unused = record.reserved_slots - record.used_slots
        most = len(self.ran) * (self.config.block_size - 1)
        says("only last blocks are partly empty", not self.ran or unused <= most, r=record)


class Continuous(Paged):
    """Level 03: every step anew, out of one budget."""

    def __init__(self, config: EngineConfig):
        super().__init__(config)
        self.budget = config.max_num_batched_tokens
        self.max_chunk_len = config.long_prefill_token_threshold or self.budget

    def may_admit(self) -> bool:
        return True


LEDGERS: dict[int, type[Ledger]] = {1: Rows, 2: Batches, 3: Continuous}
