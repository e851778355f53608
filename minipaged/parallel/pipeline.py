"""A stage begins where the one before it ended: what a token has become by then is handed on, once.

    stage 0      embedding, layers 0 .. 9    -> x [T, M] ->
    stage 1      layers 10 .. 19             -> x [T, M] ->
    stage 2      layers 20 .. 29, head       -> logits [R, V]

    time         1    2    3    4            B2 is in stage 0 while B1 is in stage 1: with as many batches
    stage 0      B1   B2   B3   ...          in flight as there are stages, none of them has to idle
    stage 1           B1   B2   B3

Every stage has the batch itself from whoever decides, so only x travels. Messages run one way and batches in one order,
so nobody can wait for somebody who waits for them; what is sent may still be on its way while the sender goes on.
Invariant: a stage keeps keys and values of its own layers, and of no other. (From level 06.)"""

import torch
from torch import Tensor

from ..input_batch import InputBatch
from .groups import Group
from .layers import Build, Pieces


class Inlet:
    """In the place of an embedding: what the stage before made of these tokens."""

    def __init__(self, hidden_size: int, build: Build, pipeline: Group):
        self.hidden_size, self.build, self.pipeline = hidden_size, build, pipeline

    def __call__(self, batch: InputBatch) -> Tensor:
        """[T, M]"""
        return self.pipeline.receive(self.build.empty(len(batch.token_ids), self.hidden_size))

    def checkpoint(self, name: str) -> Pieces:
        return {}


class Outlet:
    """In the place of a head: the next stage goes on from here."""

    num_copied_bytes = 0

    def __init__(self, vocab_size: int, pipeline: Group):
        self.vocab_size, self.pipeline = vocab_size, pipeline

    def __call__(self, change: Tensor, x: Tensor, batch: InputBatch) -> Tensor:
        """change, x [T, M]: added here, where the next norm would have done it -> no logits, [0, V]"""
        self.pipeline.send_on(x + change)
        return torch.empty(0, self.vocab_size, device=x.device)

    def checkpoint(self) -> Pieces:
        return {}

    def pack(self) -> None:
        pass
