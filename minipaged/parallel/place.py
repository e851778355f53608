"""A place is where a rank stands among the others, and with whom it talks; everything it is made of follows from it.

    rank = stage * T + t          T ranks split every layer, the stages split the layers

                      t = 0        t = 1
        stage 0      rank 0 <---> rank 1         tensor: the other slices of the same layers
                       |            |
                       v            v            pipeline: the other layers of the same slice
        stage 1      rank 2 <---> rank 3
                       |
                       v                         rank 2 answers: it alone has logits, so a token is drawn once

Replicas are worlds of their own. Only when experts are spread over all of them they share one, replica behind replica
(rank = replica * stages * T + stage * T + t), and the ranks of the same stage, in all replicas, are a group too.

The place of a process that is alone has groups of one, and costs nothing. Invariant: a rank joins once, and is nobody
else until it leaves. (From level 06.)"""

from collections.abc import Iterable
from dataclasses import dataclass, field
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
    experts: Group = field(default_factory=Alone)  # the same stage in all replicas, if experts are spread over them
    num_redundant: int = 0  # slots for second copies of experts, over all of that group

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
    num_replicas: int = 1  # that share a world
    spread_experts: bool = False
    num_redundant: int = 0

    @classmethod
    def of(cls, config: EngineConfig) -> "Layout":
        spread = config.enable_expert_parallel
        return cls(
            config.tensor_parallel_size,
            config.pipeline_parallel_size,
            config.stage_layers,
            num_replicas=config.data_parallel_size if config.shares_experts else 1,
            spread_experts=spread,
            num_redundant=config.num_redundant_experts,
        )

    def check(self, model: ModelConfig) -> None:
        """Raises ValueError, naming what would work, if the model cannot be split like this."""
        split_model(model, Nth(size=self.tensor_size), Nth(size=self.num_stages), self.stage_layers)

    def portion(self, model: ModelConfig, rank: int) -> Portion:
        """What of the model a rank has."""
        stage, t = divmod(rank, self.tensor_size)
        return split_model(model, Nth(t, self.tensor_size), Nth(stage, self.num_stages), self.stage_layers)

    @property
    def num_ranks(self) -> int:
        """Of a replica."""
        return self.tensor_size * self.num_stages

    @property
    def world_size(self) -> int:
        return self.num_ranks * self.num_replicas

    @property
    def answering_rank(self) -> int:
        return (self.num_stages - 1) * self.tensor_size

    def replica_lines(self) -> list[list[int]]:
        """The ranks of each replica, by stage and slice."""
        return [list(range(first, first + self.num_ranks)) for first in range(0, self.world_size, self.num_ranks)]

    def tensor_lines(self) -> list[list[int]]:
        """The ranks of each stage."""
        size = self.tensor_size
        return [ranks[i : i + size] for ranks in self.replica_lines() for i in range(0, self.num_ranks, size)]

    def pipeline_lines(self) -> list[list[int]]:
        """The ranks that hold the same slice, by stage."""
        return [ranks[t :: self.tensor_size] for ranks in self.replica_lines() for t in range(self.tensor_size)]

    def expert_lines(self) -> list[list[int]]:
        """The ranks of the same stage in all replicas, if experts are spread over them."""
        if not self.spread_experts:
            return []
        lines, stages = self.tensor_lines(), self.num_stages
        return [[rank for line in lines[stage::stages] for rank in line] for stage in range(stages)]


def join(store: Store, rank: int, layout: Layout, device: torch.device, timeout_s: float = TIMEOUT_S) -> Place:
    """Meet the other ranks at `store` and take this one's place. For CUDA, `device` has an index."""
    backend, timeout = "gloo", timedelta(seconds=timeout_s)
    if device.type == "cuda":
        torch.cuda.set_device(device)
        backend = "nccl"
    dist.init_process_group(backend, store=store, rank=rank, world_size=layout.world_size, timeout=timeout)
    traffic = Traffic()

    def meet(lines: Iterable[list[int]], smallest: int = 2) -> Group:
        # torch wants every rank to be there when any group is made, whoever is in it
        groups = [(line, dist.new_group(line, timeout=timeout)) for line in lines if len(line) >= smallest]
        return next((Ranks(group, traffic) for line, group in groups if rank in line), Alone())

    tensor, pipeline, experts = (
        meet(lines) for lines in (layout.tensor_lines(), layout.pipeline_lines(), layout.expert_lines())
    )
    everyone = meet(layout.replica_lines(), smallest=1)
    return Place(tensor, pipeline, everyone, traffic, layout.stage_layers, experts, layout.num_redundant)
