"""Decide, hand over, and while that runs decide the next.

    step      1     2     3     4          two stages: one batch lands while another is under way
    launch    B1    B2    B3    B4
    land            B1    B2    B3         with one stage, launch and land are the same step

Invariant: a sequence is in at most one batch in flight; what it learns, it learns when its batch lands, in the order of
launching. (Final since level 06.)"""

from collections import deque
from concurrent.futures import Future

from .base import EngineBase
from .batch import DUMMY, Chunk, Plan, advance, pack
from .config import EngineConfig
from .desk import FrontDesk
from .outputs import RequestOutput
from .parallel.executor import Executor, make_executor
from .parallel.worker import Result
from .prefix import make_block_manager
from .runner import ModelRunner
from .scheduler import Scheduler
from .speculative import make_drafter, speculate
from .speculative.drafter import Guess


class Engine(EngineBase):
    """Schedule, launch, land."""

    def __init__(self, config: EngineConfig, model: ModelRunner | None = None):
        self.executor = make_executor(config, model)
        config = self.executor.config
        super().__init__(FrontDesk(config, self.executor.vocabulary), Scheduler(config, make_block_manager(config)))
        self.drafter = make_drafter(config, self.executor.target)
        self.in_flight: deque[tuple[list[Chunk], Future[Result]]] = deque()
        self.num_batches = 0  # handed to the executor

    @property
    def model(self) -> Executor:
        """Whoever runs the batches knows how long that took."""
        return self.executor

    def step(self) -> list[RequestOutput]:
        plan = self.scheduler.schedule()
        if plan.chunks:
            self.launch(plan)
            if len(self.in_flight) < self.executor.max_concurrent_batches:
                return []  # fill the pipeline before waiting for it
        return self.land() if self.in_flight else self.retire([], [])

    def launch(self, plan: Plan) -> None:
        guesses = speculate(plan, self.drafter, self.blocks)
        batch = pack(plan.chunks, self.config.block_size)
        self.num_batches += 1
        self.in_flight.append((plan.chunks, self.executor.execute(batch, guesses)))

    def land(self) -> list[RequestOutput]:
        chunks, future = self.in_flight.popleft()
        tokens, measured = future.result()
        advance(chunks, tokens, measured)
        self.drafter.length.learn(chunks, tokens)
        return self.retire(chunks, tokens)

    def run_dummy(self) -> None:
        """One token of nobody's, for the sake of replicas that share their experts with this one (level 07)."""
        self.num_batches += 1
        self.executor.execute(DUMMY, [Guess()]).result()

    def shutdown(self) -> None:
        self.executor.shutdown()
