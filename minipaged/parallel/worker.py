"""A worker has all that is tensors: weights, keys and values, the draw of the next token. Logits never leave it.

    batch, guesses  ->  forward  ->  logits [R + Q, V]  ->  verify, measure  ->  Result: integers again

Invariant: what a worker answers depends on the batches it was given, in their order, and on nothing else.
(From level 06.)"""

from collections.abc import Sequence as SequenceOf
from typing import NamedTuple

from torch import Tensor

from ..batch import Batch, Measured
from ..config import EngineConfig
from ..logprobs import measure
from ..runner import ModelRunner
from ..speculative.drafter import Guess
from ..speculative.verify import verify
from .balance import Balance


class Result(NamedTuple):
    """What each chunk of a batch gained, and what the model thought of it."""

    tokens: list[list[int]]
    measured: SequenceOf[Measured] | None


class Worker:
    """config is complete."""

    def __init__(self, model: ModelRunner, config: EngineConfig):
        self.model = model
        self.kv_cache = model.new_kv_cache(config.num_blocks, config.block_size)

    def forward(self, batch: Batch) -> Tensor:
        """Logits [R + Q, V], where this worker's place answers."""
        return self.model(batch, self.kv_cache)

    def run(self, batch: Batch, guesses: list[Guess]) -> Result:
        """For the place that answers; the others only take part in the forward."""
        logits = self.forward(batch)
        tokens = verify(batch, logits, guesses, self.model.sample)
        return Result(tokens, measure(batch, logits, tokens))

    def rebalance(self) -> list[Balance]:
        """Layer by layer, what the experts were asked since last time, and where they are from here on."""
        return self.model.model.rebalance()
