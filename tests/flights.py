"""An executor that answers late: batches run in their order, but nobody knows when.

    Late(executor, num_batches, rng)      takes the place of an engine's executor, over the same fake model
    execute       the batch waits; by chance some of those that wait run
    result        asked for: all before it run first

The fake model bites whoever reads what is not there yet, so a batch that was packed too early, or memory that was given
away while somebody was in flight, is found out when the batch runs at last."""

from collections import deque
from concurrent.futures import Future
from random import Random

from minipaged.parallel.executor import Executor

from .guessing import Life


class Promise(Future):
    """Asking for its result makes it come."""

    def __init__(self, executor):
        super().__init__()
        self.executor = executor

    def result(self, timeout=None):
        while not self.done():
            self.executor.run_oldest()
        return super().result(timeout)


class Late(Executor):
    def __init__(self, executor, num_batches, rng):
        self.config, self.vocabulary, self.target = executor.config, executor.vocabulary, executor.target
        self.model, self.worker = executor.model, executor.worker
        self.max_concurrent_batches, self.rng = num_batches, rng
        self.batches = deque()

    @property
    def forward_s(self):
        return 0.0

    def execute(self, batch, guesses):
        self.batches.append((promise := Promise(self), batch, guesses))
        while self.batches and self.rng.random() < 0.3:
            self.run_oldest()
        return promise

    def run_oldest(self):
        promise, batch, guesses = self.batches.popleft()
        promise.set_result(self.worker.run(batch, guesses))

    def rebalance(self):
        return self.worker.rebalance()

    def shutdown(self):
        pass


def let_fly(engine, num_batches, rng=None):
    """From now on this engine of level 06 may have so many batches in flight."""
    engine.executor = Late(engine.executor, num_batches, rng or Random(0))
    engine.scheduler.max_concurrent_batches = num_batches
    return engine


class FlyingLife(Life):
    """Level 06's life, with two to four batches in flight."""

    def __init__(self, rng):
        super().__init__(6, rng)
        self.num_batches, self.most = rng.randint(2, 4), 0
        let_fly(self.engine, self.num_batches, rng)

    def step(self):
        super().step()
        flights = self.engine.in_flight
        assert len(flights) < self.num_batches, "one has to land when all are on their way"
        assert len(self.engine.trace.steps) == 0 or self.engine.trace.steps[-1].step == len(self.engine.trace.steps) - 1
        self.most = max(self.most, len(flights) + 1)


def flight_storm(seed):
    life = FlyingLife(Random(seed))
    for _ in range(20):
        life.something_happens()
    life.drain()
    return life
