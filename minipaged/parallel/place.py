"""A place is where a rank stands among the others, and with whom it talks; everything it is made of follows from it.

    rank = stage * T + t          T ranks split every layer, the stages split the layers

                      t = 0        t = 1
        stage 0      rank 0 <---> rank 1         tensor: the other slices of the same layers
                       |            |
                       v            v            pipeline: the other layers of the same slice
        stage 1      rank 2 <---> rank 3
                       |
                       v                         rank 2 answers: it alone has logits, so a token is drawn once

The place of a process that is alone has groups of one, and costs nothing. Invariant: a rank joins once, and is nobody
else until it leaves. (From level 06.)"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store

from ..config import EngineConfig
from ..models.config import ModelConfig
from .groups import Alone, Group, Ranks, Traffic
from .portion import Nth, Portion, split_model

TIMEOUT_S = 300.0  # far longer than a step: loading and the first compilation lie between two messages, too


@dataclass(frozen=True)
class Place:
    """Where a rank stands, and with whom it talks."""

    tensor: Group  # the other slices of the same layers
    pipeline: Group  # the other layers of the same slice: rank is the stage
    everyone: Group
    traffic: Traffic
    stage_layers: tuple[int, ...] | None = None  # how many layers each stage has; None: as even as can be

    @classmethod
    def alone(cls) -> "Place":
        return cls(Alone(), Alone(), Alone(), Traffic())

    def portion_of(self, config: ModelConfig) -> Portion:
        """What of a model belongs here. Raises ValueError if the model cannot be split like this."""
        tensor, pipeline = Nth(self.tensor.rank, self.tensor.size), Nth(self.pipeline.rank, self.pipeline.size)
        return split_model(config, tensor, pipeline, self.stage_layers)

    @property
    def is_first(self) -> bool:
        """Of the stages: it gets tokens."""
        return self.pipeline.rank == 0

    @property
    def is_last(self) -> bool:
        """Of the stages: it has the head."""
        return self.pipeline.rank == self.pipeline.size - 1

    @property
    def answers(self) -> bool:
        """Of all ranks one: it has logits to sample."""
        return self.is_last and self.tensor.rank == 0


class Layout(NamedTuple):
    """How the ranks are arranged: plain numbers, known before any process is there."""

    tensor_size: int = 1
    num_stages: int = 1
    stage_layers: tuple[int, ...] | None = None

    @classmethod
    def of(cls, config: EngineConfig) -> "Layout":
        return cls(config.tensor_parallel_size, config.pipeline_parallel_size, config.stage_layers)

    def check(self, model: ModelConfig) -> None:
        """Raises ValueError, naming what would work, if the model cannot be split like this."""
        split_model(model, Nth(size=self.tensor_size), Nth(size=self.num_stages), self.stage_layers)

    def portion(self, model: ModelConfig, rank: int) -> Portion:
        """What of the model a rank has."""
        stage, t = divmod(rank, self.tensor_size)
        return split_model(model, Nth(t, self.tensor_size), Nth(stage, self.num_stages), self.stage_layers)

    @property
    def num_ranks(self) -> int:
        return self.tensor_size * self.num_stages

    @property
    def answering_rank(self) -> int:
        return (self.num_stages - 1) * self.tensor_size

    def tensor_lines(self) -> list[list[int]]:
        """The ranks of each stage."""
        return [[s * self.tensor_size + t for t in range(self.tensor_size)] for s in range(self.num_stages)]

    def pipeline_lines(self) -> list[list[int]]:
        """The ranks that hold the same slice, by stage."""
        return [[s * self.tensor_size + t for s in range(self.num_stages)] for t in range(self.tensor_size)]


def join(store: Store, rank: int, layout: Layout, device: torch.device, timeout_s: float = TIMEOUT_S) -> Place:
    """Meet the other ranks at `store` and take this one's place. For CUDA, `device` has an index."""
    backend, timeout = "gloo", timedelta(seconds=timeout_s)
    if device.type == "cuda":
        torch.cuda.set_device(device)
        backend = "nccl"
    dist.init_process_group(backend, store=store, rank=rank, world_size=layout.num_ranks, timeout=timeout)
    traffic = Traffic()

    def meet(lines: Iterable[list[int]], smallest: int = 2) -> Group:
        # torch wants every rank to be there when any group is made, whoever is in it
        groups = [(line, dist.new_group(line, timeout=timeout)) for line in lines if len(line) >= smallest]
        return next((Ranks(group, traffic) for line, group in groups if rank in line), Alone())

    tensor, pipeline = meet(layout.tensor_lines()), meet(layout.pipeline_lines())
    everyone = meet([list(range(layout.num_ranks))], smallest=1)
    return Place(tensor, pipeline, everyone, traffic, layout.stage_layers)
