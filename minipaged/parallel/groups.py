"""Ranks that need each other's numbers meet in a group; whoever is alone is a group too, with nothing to say.

    all_reduce     x0  x1           -> x0 + x1  on both              sums of what each rank has: twice in a layer
    gather         [x0]  [x1]       -> [x0 x1]  on rank 0            logits, to where tokens are drawn
    exchange       [a0 a1]  [b0 b1] -> [a0 b0]  [a1 b1]              tokens to their experts, answers back
    send_on        x                -> to the next rank              what a stage has made of the tokens

Messages go through gloo between CPUs and NCCL between GPUs, and are counted. What a rank sends for n ranks to add up x
is 2 (n - 1) / n of x: around a ring, each share of x passes every rank once while it is added up and once when done.

Invariants: all members of a group call the same things in the same order; an all-reduce leaves the same bits
everywhere; nobody waits for a message longer than the time-out. (From level 06.)"""

import time
from abc import ABC, abstractmethod
from collections import Counter

import torch
import torch.distributed as dist
from torch import Tensor


class Traffic:
    """What a rank has sent so far, by the name of the operation, and how long it waited for the stage before."""

    def __init__(self) -> None:
        self.num_messages, self.num_bytes = Counter[str](), Counter[str]()
        self.waited_s = 0.0

    def count(self, operation: str, num_bytes: int) -> None:
        self.num_messages[operation] += 1
        self.num_bytes[operation] += num_bytes


class Group(ABC):
    """`size` ranks, of which this is number `rank`."""

    rank: int
    size: int

    @abstractmethod
    def all_reduce(self, x: Tensor) -> Tensor:
        """Everybody's x, added up, in the memory of x."""

    @abstractmethod
    def all_gather(self, x: Tensor, dim: int = -1) -> Tensor:
        """Everybody's x, side by side along dim."""

    @abstractmethod
    def gather(self, x: Tensor) -> Tensor:
        """x [R, n] -> [R, size * n] on rank 0, side by side; elsewhere no rows."""

    @abstractmethod
    def exchange(self, x: Tensor, to_each: list[int], from_each: list[int]) -> Tensor:
        """x [A, ...], so many rows for each rank, in order -> what each had for this one, in order."""

    @abstractmethod
    def send_on(self, x: Tensor) -> None:
        """x goes to the next rank, while this one goes on. x must not be changed any more."""

    @abstractmethod
    def receive(self, x: Tensor) -> Tensor:
        """Fill x with what the rank before has sent on."""

    @abstractmethod
    def leave(self) -> None:
        """The last thing to do with any group of this process."""


class Alone(Group):
    """A group of one has everything already. It has neighbours on neither side."""

    rank, size = 0, 1

    def all_reduce(self, x: Tensor) -> Tensor:
        return x

    def all_gather(self, x: Tensor, dim: int = -1) -> Tensor:
        return x

    def gather(self, x: Tensor) -> Tensor:
        return x

    def exchange(self, x: Tensor, to_each: list[int], from_each: list[int]) -> Tensor:
        return x

    def send_on(self, x: Tensor) -> None:
        raise AssertionError("one stage has no next stage")

    def receive(self, x: Tensor) -> Tensor:
        raise AssertionError("one stage has no stage before")

    def leave(self) -> None:
        pass


class Ranks(Group):
    """Processes, by way of torch.distributed."""

    def __init__(self, group: dist.ProcessGroup, traffic: Traffic):
        self.group, self.traffic = group, traffic
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.on_its_way: tuple[dist.Work, Tensor] | None = None

    def all_reduce(self, x: Tensor) -> Tensor:
        dist.all_reduce(x, group=self.group)
        self.traffic.count("all_reduce", 2 * x.nbytes * (self.size - 1) // self.size)
        return x

    def all_gather(self, x: Tensor, dim: int = -1) -> Tensor:
        parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(self.size)]
        dist.all_gather(parts, x.contiguous(), group=self.group)
        self.traffic.count("all_gather", x.nbytes * (self.size - 1))
        return torch.cat(parts, dim)

    def gather(self, x: Tensor) -> Tensor:
        if self.rank > 0:
            dist.gather(x.contiguous(), group=self.group, group_dst=0)
            self.traffic.count("gather", x.nbytes)
            return x[:0]
        parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(self.size)]
        dist.gather(x.contiguous(), parts, group=self.group, group_dst=0)
        return torch.cat(parts, dim=-1)

    def exchange(self, x: Tensor, to_each: list[int], from_each: list[int]) -> Tensor:
        rows = x.new_empty(sum(from_each), *x.shape[1:])
        dist.all_to_all_single(rows, x.contiguous(), from_each, to_each, group=self.group)
        row_bytes = x[:1].nbytes if len(x) else 0
        self.traffic.count("exchange", (len(x) - to_each[self.rank]) * row_bytes)
        return rows

    def send_on(self, x: Tensor) -> None:
        """One message may be on its way; the next waits until that has been taken, so memory stays bounded."""
        if self.on_its_way:
            self.on_its_way[0].wait()
        work = dist.isend(x, group=self.group, group_dst=self.rank + 1)
        assert work is not None, "a rank sends only in a group of its own"
        self.on_its_way = work, x
        self.traffic.count("send", x.nbytes)

    def receive(self, x: Tensor) -> Tensor:
        start = time.perf_counter()
        dist.recv(x, group=self.group, group_src=self.rank - 1)
        self.traffic.waited_s += time.perf_counter() - start
        return x

    def leave(self) -> None:
        dist.destroy_process_group()
