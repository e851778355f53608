"""Ranks as threads: what a group does, without processes, so that hypothesis may start thousands of them.

    answers = in_step(3, lambda rank, group: group.exchange(...))      one call for each rank, results by rank

Everybody puts what they have on a table, waits for the others, takes what is theirs. Whoever does not come lets all
others fail after a few seconds, as a process group would."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import torch

from minipaged.parallel.groups import Group

PATIENCE_S = 10.0


class Table:
    def __init__(self, size):
        self.places, self.barrier = [None] * size, Barrier(size, timeout=PATIENCE_S)

    def swap(self, rank, value):
        """Everybody's value, by rank."""
        self.places[rank] = value
        self.barrier.wait()
        values = list(self.places)
        self.barrier.wait()
        return values


class Threads(Group):
    def __init__(self, rank, table):
        self.rank, self.size, self.table = rank, len(table.places), table

    def all_reduce(self, x):
        return x.copy_(sum(self.table.swap(self.rank, x.clone())))

    def all_gather(self, x, dim=-1):
        return torch.cat(self.table.swap(self.rank, x.clone()), dim)

    def exchange(self, x, to_each, from_each):
        assert (len(to_each), len(from_each), sum(to_each)) == (self.size, self.size, len(x))
        parts = [parts[self.rank] for parts in self.table.swap(self.rank, x.clone().split(to_each))]
        assert [len(part) for part in parts] == from_each
        return torch.cat(parts)

    def gather(self, x):
        parts = self.table.swap(self.rank, x.clone())
        return torch.cat(parts, dim=-1) if self.rank == 0 else x[:0]

    def smallest(self, number):
        return min(self.table.swap(self.rank, number))

    def send_on(self, x):
        raise NotImplementedError

    def receive(self, x):
        raise NotImplementedError

    def leave(self):
        pass


def in_step(size, work):
    table = Table(size)
    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(work, rank, Threads(rank, table)) for rank in range(size)]
        return [future.result() for future in futures]
