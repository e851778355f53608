"""Ranks for tests: four processes, started once, that take whatever places a test needs.

    crew.run(Layout(tensor_size=2, num_stages=2), job, *args)  ->  [what job(place, *args) gave on rank 0, 1, 2, 3]

They are forked from a server that has imported torch and no more, so that four cost little more than one."""

import os
import traceback
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from minipaged.parallel.groups import Alone, Traffic
from minipaged.parallel.place import Place, join

CPU = torch.device("cpu")
NUM_RANKS = 4
PATIENCE_S = 60.0


class Crew:
    def __init__(self):
        context = get_context("forkserver")
        context.set_forkserver_preload(["tests.parallel.crew", "tests.parallel.jobs", "tests.parallel.expert_jobs"])
        self.folder, self.num_jobs = TemporaryDirectory(), 0
        self.pipes, self.processes = [], []
        for _ in range(NUM_RANKS):
            ours, theirs = context.Pipe()
            process = context.Process(target=serve, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)

    def run(self, layout, job, *args, timeout_s=20.0):
        self.num_jobs += 1
        meeting = str(Path(self.folder.name) / str(self.num_jobs))
        pipes = self.pipes[: layout.world_size]
        for rank, pipe in enumerate(pipes):
            pipe.send((meeting, rank, layout, timeout_s, job, args))
        answers = [pipe.recv() if pipe.poll(PATIENCE_S) else (False, "no answer") for pipe in pipes]
        for rank, (fine, answer) in enumerate(answers):
            assert fine, f"rank {rank}: {answer}"
        return [answer for _, answer in answers]

    def close(self):
        for pipe in self.pipes:
            pipe.send(None)
        for process in self.processes:
            process.join(PATIENCE_S)
            assert process.exitcode == 0
        self.folder.cleanup()


def serve(pipe):
    """One process: a job after the other, each in a place of its own."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    while order := pipe.recv():
        meeting, rank, layout, timeout_s, job, args = order
        store = torch.distributed.FileStore(meeting, layout.world_size)
        place = join(store, rank, layout, CPU, timeout_s)
        try:
            pipe.send((True, job(place, *args)))
        except Exception:
            pipe.send((False, traceback.format_exc()))
        place.everyone.leave()


class Mute(Alone):
    """A group whose other members are not there: enough to build and load a rank's part, not to run it."""

    def __init__(self, rank, size):
        self.rank, self.size = rank, size


def places(layout):
    """One for each rank, with nobody behind them."""
    return [
        Place(
            Mute(rank % layout.tensor_size, layout.tensor_size),
            Mute(rank // layout.tensor_size, layout.num_stages),
            Mute(rank, layout.num_ranks),
            Traffic(),
            layout.stage_layers,
        )
        for rank in range(layout.num_ranks)
    ]
