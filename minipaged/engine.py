"""Decide, hand over, and while that runs decide the next.

    step      1     2     3     4          two stages: one batch lands while another is under way
    launch    B1    B2    B3    B4
    land            B1    B2    B3         with one stage, launch and land are the same step

Whoever is in flight is left alone: it is in no second batch, gives no blocks back, and gives way only once it has
landed. An abort takes its id at once and its memory when it lands. Invariant: a sequence is in at most one batch in
flight; what it learns, it learns when its batch lands, in the order of launching. (Final since level 06.)"""

from collections import deque
from concurrent.futures import Future
from typing import NamedTuple

from .base import EngineBase
from .batch import Batch, Chunk, Plan, advance, pack
from .config import EngineConfig
from .desk import FrontDesk
from .outputs import RequestOutput
from .parallel.backends import make_executor
from .parallel.balance import Balance
from .parallel.executor import Executor, or_leave_nothing
from .parallel.worker import Result
from .prefix import make_block_manager
from .runner import ModelRunner
from .scheduler import Scheduler
from .speculative import make_drafter, speculate
from .trace import StepRecord


class Flight(NamedTuple):
    """A batch under way, by its sequences themselves: an id may belong to somebody else before it lands."""

    chunks: list[Chunk]
    result: "Future[Result]"
    record: StepRecord


class Engine(EngineBase):
    """Schedule, launch, land. On its own it is level 06's; whoever composes level 07's brings an executor."""

    def __init__(self, config: EngineConfig, model: ModelRunner | None = None, executor: Executor | None = None):
        if executor is None:
            config.check_level(6)
        with or_leave_nothing(executor or make_executor(config, model)) as self.executor:
            config, num_batches = self.executor.config, self.executor.max_concurrent_batches
            desk = FrontDesk(config, self.executor.vocabulary)
            super().__init__(desk, Scheduler(config, make_block_manager(config), num_batches))
            self.drafter = make_drafter(config, self.executor.target)
        self.in_flight: deque[Flight] = deque()
        self.num_batches = 0  # handed to the executor

    @property
    def model(self) -> Executor:
        """Whoever runs the batches knows how long that took."""
        return self.executor

    def step(self) -> list[RequestOutput]:
        plan = self.scheduler.schedule()
        if plan.chunks:
            self.launch(plan)
            if len(self.in_flight) < self.scheduler.max_concurrent_batches:
                return []  # fill the pipeline before waiting for it
        return self.land() if self.in_flight else self.retire([], [])

    def launch(self, plan: Plan) -> None:
        guesses = speculate(plan, self.drafter, self.blocks)
        batch = pack(plan.chunks, self.config.block_size)
        self.num_batches += 1
        result = self.executor.execute(batch, guesses)
        self.in_flight.append(Flight(plan.chunks, result, self.trace.hand_over()))
        self.pin()

    def land(self) -> list[RequestOutput]:
        chunks, result, record = self.in_flight[0]
        tokens, measured = self.wait_for(result)
        self.in_flight.popleft()  # and not before: the wait may be interrupted
        self.pin()
        self.trace.land(record)
        advance(chunks, tokens, measured)
        self.drafter.length.learn(chunks, tokens)
        return self.retire(chunks, tokens)

    def wait_for(self, result: "Future[Result]") -> Result:
        """If a batch fails, so do all behind it: nobody is in flight any more."""
        try:
            return result.result()
        except Exception:
            self.in_flight.clear()
            self.pin()
            raise

    def pin(self) -> None:
        """Whoever is in a batch in flight, and nobody else."""
        flying = {chunk.seq for flight in self.in_flight for chunk in flight.chunks}
        for seq in self.scheduler.running:
            seq.in_flight = seq in flying

    def abort(self, request_id: str) -> None:
        self.pin()  # Ctrl-C may have come between a launch, or a landing, and its pin
        super().abort(request_id)

    def check_integrity(self) -> None:
        super().check_integrity()
        flying = [chunk.seq for flight in self.in_flight for chunk in flight.chunks]
        assert len(flying) == len(set(flying)), "a sequence is in at most one batch in flight"
        assert {*flying} == {seq for seq in self.scheduler.running if seq.in_flight}, "whoever is in flight runs"

    def run_dummy(self) -> None:
        """A batch without a token, for the sake of replicas that share their experts with this one (level 07)."""
        self.num_batches += 1
        self.executor.execute(Batch.empty(), []).result()

    def rebalance(self) -> list[Balance]:
        """What the experts of each layer were asked since last time, and where spread ones went (level 07)."""
        return self.executor.rebalance()

    def check_alive(self) -> None:
        """Raises RankError if a rank has gone while nobody asked for anything (level 07 looks, when it is idle)."""
        self.executor.check_alive()

    def shutdown(self) -> None:
        """No process is left. May be called any number of times."""
        self.executor.shutdown()
