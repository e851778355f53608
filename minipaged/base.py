"""Mechanism, not policy: the verbs every scheduler is written with, and the frame every engine hangs in.

    enter ->  waiting  -- admit -->  running  -- retire -->  finished
       |        ^  ^                    |
       |        |  +----- preempt ------+      memory given back, tokens kept: it will compute them again
       +->  preparing                          from level 03: until its grammar is compiled (structured.py)

Invariant: a live sequence is in exactly one of the three; `running` is sorted as the queue is, so whoever gives way is
its last; a sequence in flight (from level 06) keeps its memory until it lands; an engine that has work and makes no
progress raises instead of turning for ever. (From level 02.)"""

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf
from concurrent.futures import FIRST_COMPLETED, wait

from .batch import Chunk, Plan
from .blocks import BlockManager
from .config import EngineConfig
from .desk import FrontDesk
from .outputs import RequestOutput
from .queue import RequestQueue
from .sampling_params import SamplingParams
from .sequence import Sequence
from .trace import Occupancy, StepTrace

LONGEST_WAIT_S = 0.05  # for a grammar, when there is nothing else to do


class SchedulerBase(ABC):
    """The verbs; a level's Scheduler is a paragraph written with them."""

    def __init__(self, config: EngineConfig, blocks: BlockManager, max_concurrent_batches: int = 1):
        self.config, self.blocks = config, blocks
        self.max_concurrent_batches = max_concurrent_batches  # in flight, from level 06 on
        self.waiting = RequestQueue(config.scheduling_policy)
        self.running = RequestQueue(config.scheduling_policy)
        self.preparing = RequestQueue(config.scheduling_policy)
        self.trace = StepTrace(blocks.block_size)

    @abstractmethod
    def schedule(self) -> Plan:
        """The policy: which sequences run next, and how many of their tokens."""

    def begin(self, budget: int = sys.maxsize, max_chunk_len: int = sys.maxsize) -> Plan:
        """Open a step that may run `budget` tokens, at most max_chunk_len of one sequence."""
        self.trace.begin()
        self.let_in()
        return Plan(budget, max_chunk_len)

    def enter(self, seq: Sequence) -> None:
        queue = self.preparing if seq.grammar and not seq.grammar.is_ready else self.waiting
        queue.push(seq)

    def let_in(self) -> None:
        """Whoever's grammar is compiled takes its own place in the queue; if nobody else is here, wait a moment."""
        grammars = {seq: seq.grammar for seq in self.preparing if seq.grammar}
        if grammars and not (self.waiting or self.running):
            wait([grammar.compiled for grammar in grammars.values()], LONGEST_WAIT_S, FIRST_COMPLETED)
        for seq, grammar in grammars.items():
            if grammar.is_ready and grammar.error:
                seq.fail(grammar.error)  # it is told, and goes, when the step is closed
            elif grammar.is_ready:
                self.preparing.remove(seq)
                self.waiting.push(seq)

    def head(self) -> Sequence | None:
        """Whoever is next, if there is a seat: nobody behind it is asked."""
        return self.waiting[0] if self.waiting and len(self.running) < self.config.max_num_seqs else None

    def admit(self) -> Sequence:
        seq = self.waiting.pop(0)
        self.running.push(seq)
        if not seq.num_preemptions:
            seq.num_cached_tokens = seq.num_computed_tokens  # found by level 04's adopt; 0 before
        self.trace.admitted(seq)
        return seq

    def ready(self) -> Iterator[Sequence]:
        """The running sequences that a step may touch, in order."""
        for seq in self.running:
            if not seq.in_flight:
                yield seq

    def make_room(self, seq: Sequence, plan: Plan) -> bool:
        """Reserve seq's share; while blocks are short, the last in line gives way, or will when it has landed.
        False: seq does not run now."""
        while not self.blocks.reserve(seq, plan.share(seq)):
            plan.crowded = True
            if self.running[-1].in_flight or self.preempt() is seq:
                return False
        return True

    def preempt(self) -> Sequence:
        """The last in line gives its blocks back and waits, in its own place, to compute its tokens again."""
        # the last was never planned in this step, so `schedule` may be looping over running
        seq = self.running.pop()
        self.blocks.release(seq)
        seq.num_preemptions += 1
        self.waiting.push(seq)
        self.trace.preempted(seq)
        return seq

    def start_over(self) -> None:
        """A step broke: everybody gives way, for whoever borrowed a block may have borrowed what was never written.

        Not those in flight: they were launched before it, so they borrowed nothing of its."""
        flying = [seq for seq in self.running if seq.in_flight]
        for seq in flying:
            self.running.remove(seq)
        while self.running:
            self.preempt()
        for seq in flying:
            self.running.push(seq)

    def retire(self) -> list[Sequence]:
        """Release every finished sequence and hand it back."""
        refused = [seq for seq in self.preparing if seq.finished]
        for seq in refused:
            self.preparing.remove(seq)
        done = [seq for seq in self.running if seq.finished and not seq.in_flight]
        for seq in done:
            self.running.remove(seq)
            self.blocks.release(seq)
        return refused + done

    def abort(self, seq: Sequence) -> None:
        seq.finish_reason = "abort"
        if seq in self.waiting:
            self.waiting.remove(seq)
        self.retire()  # from the other two


class EngineBase(ABC):
    """The frame: requests come in at the desk, wait in the scheduler's queue, and are reported step by step."""

    def __init__(self, desk: FrontDesk, scheduler: SchedulerBase):
        self.config, self.desk, self.scheduler = desk.config, desk, scheduler
        self.blocks, self.trace = scheduler.blocks, scheduler.trace

    @abstractmethod
    def step(self) -> list[RequestOutput]:
        """Run one batch; a RequestOutput for each request that gained tokens or ended."""

    def add_request(
        self,
        prompt_token_ids: list[int],
        params: SamplingParams,
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> str:
        """Queue a request and return its id. Raises ValueError or TypeError for what could not even run alone."""
        choices = self.desk.open(prompt_token_ids, params, request_id, priority, cache_salt)
        for seq in choices:
            self.scheduler.enter(seq)
        return choices[0].request_id

    def abort(self, request_id: str) -> None:
        """In any state, any number of times, unknown ids too: never an error."""
        for seq in self.desk.close(request_id):
            self.scheduler.abort(seq)

    def has_unfinished_requests(self) -> bool:
        return bool(self.scheduler.waiting or self.scheduler.running or self.scheduler.preparing)

    @property
    def holders(self) -> list[Sequence]:
        """Whoever holds memory."""
        return self.scheduler.running

    @property
    def waiting(self) -> list[Sequence]:
        """Whoever has no place yet, in order; those whose grammar is not compiled come last."""
        return [*self.scheduler.waiting, *self.scheduler.preparing]

    @property
    def cached_blocks(self) -> list[int]:
        """Free blocks that are remembered."""
        return self.blocks.cached_blocks

    @property
    def occupancy(self) -> Occupancy:
        """How things stand between two steps."""
        scheduler, blocks = self.scheduler, self.blocks
        num_waiting = len(scheduler.waiting) + len(scheduler.preparing)  # counted, not listed: they may be very many
        return Occupancy(num_waiting, len(scheduler.running), blocks.num_free_blocks, blocks.num_blocks)

    def retire(self, chunks: SequenceOf[Chunk], new_tokens: list[list[int]]) -> list[RequestOutput]:
        """Close the step: report what is new, release the finished, write it all down."""
        running, waiting, preparing = self.scheduler.running, self.scheduler.waiting, self.scheduler.preparing
        self.trace.record(chunks, new_tokens, running, self.blocks.num_blocks - self.blocks.num_free_blocks)
        for chunk in chunks:
            if chunk.drafts:
                self.blocks.settle(chunk.seq)
        outputs = self.desk.report([*preparing, *running])
        done = self.scheduler.retire()
        if not chunks and not done and (waiting or running):
            raise RuntimeError(f"no progress: {len(waiting)} waiting, {len(running)} running")
        if chunks or done:
            self.trace.finish([seq for seq in done if seq.finish_reason != "abort"], self.occupancy)
        return outputs

    def reset_prefix_cache(self) -> bool:
        """Forget all shared beginnings, as after a change of weights; False while a request is running."""
        return self.blocks.reset()

    def check_integrity(self) -> None:
        """Raises AssertionError with the broken invariant's name."""
        waiting, running, preparing = self.scheduler.waiting, self.scheduler.running, self.scheduler.preparing
        self.blocks.check_integrity(running)
        self.desk.check_integrity([*waiting, *running, *preparing])
        assert not {*waiting, *preparing} & {*running}, "nobody waits and runs"
        assert not {*waiting} & {*preparing}, "whoever waits is prepared"
        assert not any(seq.block_table for seq in [*waiting, *preparing]), "whoever waits holds no block"
        for queue in (waiting, running, preparing):
            assert queue == sorted(queue, key=queue.key), "queues are sorted by the policy's key"
