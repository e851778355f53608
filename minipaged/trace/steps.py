"""What was decided and what it cost, one record a step; lessons, tests and plots read nothing else.

    r0 |8 1 1 1 1 1 1 1      ran so many tokens
    r1 |. . 5 1 x . 7 1      waited; was preempted, and later computed its tokens again

A slot is reserved when it belongs to a request, and used when it holds the keys and values of one of its tokens; both
are taken during the step, before whoever finished gives theirs back. Only last blocks are partly empty, so what is
reserved in vain is summed over the running sequences, never over blocks. A request's choices have its id in common:
their tokens, run or found, are added up, and each move of each choice is listed. Invariant: used <= reserved; waste is
the mean over steps of 1 - used / reserved. `python -m minipaged.trace FILE --perfetto OUT` redraws a trace for
Perfetto. (From level 01.)"""

import time
from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, NamedTuple

from ..batch import Chunk
from ..sequence import Sequence


@dataclass
class StepRecord:
    """One step; the first fourteen fields are the document's (`--trace`)."""

    step: int
    t_s: float = 0.0
    num_scheduled_tokens: dict[str, int] = field(default_factory=dict)
    draft_tokens: dict[str, int] = field(default_factory=dict)
    accepted_tokens: dict[str, int] = field(default_factory=dict)
    admitted: list[str] = field(default_factory=list)
    preempted: list[str] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)
    cached_tokens: dict[str, int] = field(default_factory=dict)
    num_waiting: int = 0
    num_running: int = 0
    num_free_blocks: int = 0
    num_blocks: int = 0
    replica: int | None = None  # whose step it was, where there are several (level 07)
    reserved_slots: int = 0
    used_slots: int = 0
    accepted_runs: list[int] = field(default_factory=list)  # how many guesses were right, for each that was checked
    longest_draft: int = 0


UNPUBLISHED = ("reserved_slots", "used_slots", "accepted_runs", "longest_draft")


class Occupancy(NamedTuple):
    """The end of a step, in counts."""

    num_waiting: int
    num_running: int
    num_free_blocks: int
    num_blocks: int


class StepTrace:
    """Filled while a step happens (`begin`, `admitted`, `preempted`), closed by `record` and `finish`."""

    def __init__(self, block_size: int):
        self.block_size = block_size
        self.steps: list[StepRecord] = []
        self.num_taken = 0
        self.now = StepRecord(0)
        self.started_at: float | None = None

    def begin(self) -> None:
        """A step starts here; the first one starts the clock."""
        moment = time.perf_counter()
        self.started_at = moment if self.started_at is None else self.started_at
        # an interrupted step leaves nothing behind
        self.now = StepRecord(self.num_taken + len(self.steps), moment - self.started_at)

    def hand_over(self) -> StepRecord:
        """The record of a step whose batch is under way; `land` takes it back."""
        record, self.now = self.now, StepRecord(0, self.now.t_s)
        return record

    def land(self, record: StepRecord) -> None:
        """Go on with a record that was handed over; whoever gave way since without a batch of its own is in it."""
        record.preempted += self.now.preempted
        self.now = record

    def admitted(self, seq: Sequence) -> None:
        self.now.admitted.append(seq.request_id)
        add(self.now.cached_tokens, seq.request_id, seq.num_computed_tokens)

    def preempted(self, seq: Sequence) -> None:
        self.now.preempted.append(seq.request_id)

    def record(
        self,
        chunks: SequenceOf[Chunk],
        new_tokens: SequenceOf[list[int]],
        holders: Iterable[Sequence],
        num_held_blocks: int,
    ) -> None:
        """What ran and said what, and what its memory looked like; `holders` are all sequences that hold blocks."""
        for chunk, token_ids in zip(chunks, new_tokens, strict=True):
            name, num_drafts = chunk.seq.request_id, len(chunk.drafts)
            add(self.now.num_scheduled_tokens, name, chunk.num_tokens + num_drafts)
            if num_drafts:
                add(self.now.draft_tokens, name, num_drafts)
                add(self.now.accepted_tokens, name, len(token_ids) - 1)
                self.now.accepted_runs.append(len(token_ids) - 1)
                self.now.longest_draft = max(self.now.longest_draft, num_drafts)
        unused = sum(len(seq.block_table) * self.block_size - seq.num_computed_tokens for seq in holders)
        self.now.reserved_slots = num_held_blocks * self.block_size
        self.now.used_slots = self.now.reserved_slots - unused

    def finish(self, finished: Iterable[Sequence], occupancy: Occupancy) -> None:
        """Close the step, after the finished gave their memory back."""
        self.now.finished = [seq.request_id for seq in finished]
        for name, value in occupancy._asdict().items():
            setattr(self.now, name, value)
        self.now.step = self.num_taken + len(self.steps)
        self.steps.append(self.now)

    def take(self) -> list[StepRecord]:
        """Hand the records over and keep none: an engine may serve for days."""
        steps, self.steps = self.steps, []
        self.num_taken += len(steps)
        return steps

    def document(self) -> dict[str, Any]:
        """The trace as `--trace` writes it."""
        return {"steps": [{k: v for k, v in vars(step).items() if k not in UNPUBLISHED} for step in self.steps]}


def add(sums: dict[str, int], request_id: str, number: int) -> None:
    """The choices of one request are counted together."""
    sums[request_id] = sums.get(request_id, 0) + number


def kv_usage(steps: Iterable[StepRecord]) -> dict[str, float | None]:
    """Mean slots reserved and used over the steps that held any, and the mean waste; None where no step did."""
    holding = [step for step in steps if step.reserved_slots]
    return {
        "reserved_slots_mean": fmean(step.reserved_slots for step in holding) if holding else None,
        "used_slots_mean": fmean(step.used_slots for step in holding) if holding else None,
        "waste": fmean(1 - step.used_slots / step.reserved_slots for step in holding) if holding else None,
    }
