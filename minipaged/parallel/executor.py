"""The engine hands over a batch and asks for its tokens later; how many devices that takes is hidden.

    Engine      integers     execute(batch, guesses) -> a future of what each chunk gained
    Executor    processes    none but this one, or one for each rank
    Worker      tensors      model, keys and values, the draw of the next token: worker.py

Invariant: batches run in the order in which they were handed over. (From level 06.)"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager

from ..batch import Batch
from ..config import EngineConfig
from ..loading import Target
from ..runner import ModelRunner
from ..speculative.drafter import Guess
from ..vocabulary import Vocabulary
from .balance import Balance
from .worker import Result, Worker


class Executor(ABC):
    """config is complete. max_concurrent_batches: how many it takes before one has to be waited for."""

    config: EngineConfig
    vocabulary: Vocabulary
    target: Target  # whoever a draft model would guess for
    max_concurrent_batches = 1

    @property
    @abstractmethod
    def forward_s(self) -> float:
        """Seconds spent in the model so far."""

    @abstractmethod
    def execute(self, batch: Batch, guesses: list[Guess]) -> "Future[Result]":
        """Run a batch; the future fails with the reason if it cannot be run."""

    @abstractmethod
    def rebalance(self) -> list[Balance]:
        """Of each layer with experts, what they were asked since last time; those that are spread move, behind all
        batches that were handed over. Ranks that share experts do it together (level 07)."""

    def check_alive(self) -> None:  # noqa: B027 (one process has nobody to miss)
        """Raises what ended it, if a rank is gone; waits for nothing."""

    @abstractmethod
    def shutdown(self) -> None:
        """Leave nothing behind. May be called any number of times."""


@contextmanager
def or_leave_nothing(executor: Executor) -> Iterator[Executor]:
    """Compose an engine around it: if that fails, nobody else knows of its ranks."""
    try:
        yield executor
    except BaseException:
        executor.shutdown()
        raise


class UniprocExecutor(Executor):
    """The direct call."""

    def __init__(self, config: EngineConfig, model: ModelRunner):
        self.target = self.model = model
        self.vocabulary = model.vocabulary
        self.config = model.resolve(config)
        self.worker = Worker(model, self.config)

    @property
    def forward_s(self) -> float:
        return self.model.forward_s

    def execute(self, batch: Batch, guesses: list[Guess]) -> "Future[Result]":
        future: Future[Result] = Future()
        try:
            future.set_result(self.worker.run(batch, guesses))
        except Exception as error:
            future.set_exception(error)
        return future

    def rebalance(self) -> list[Balance]:
        return self.worker.rebalance()

    def shutdown(self) -> None:
        """There is nobody else."""
