"""One process for each rank, on this host: children of the driver, each at the other end of a pair of sockets.

    driver   Popen(python -m minipaged.parallel.rank FD)   x num_ranks      no port, no pickle, no shared memory

They share the cores, unless OMP_NUM_THREADS says how. A session of their own keeps Ctrl-C at the terminal from them: it
is for the driver. Invariant: a child has no end of any line but its own, so that a driver's death closes them all.
(From level 06.)"""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

from .lines import Line, make_pair

EXIT_S = 1.0  # between the end of a line and that of its process


class Processes:
    """The launcher of `mp`."""

    host = "127.0.0.1"  # where ranks meet

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, num_ranks: int) -> list[Line]:
        lines = []
        try:
            for rank in range(num_ranks):
                ours, theirs = make_pair()
                lines.append(ours)
                self.processes.append(start_rank(theirs.fileno(), rank, num_ranks))
                theirs.close()
        except BaseException:
            self.stop(0.0)
            raise
        return lines

    def describe_end(self, rank: int) -> str:
        try:
            code = self.processes[rank].wait(EXIT_S)
        except subprocess.TimeoutExpired:
            return "it closed its line"
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"

    def stop(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        for process in self.processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
        for process in self.processes:
            process.kill()
            process.wait()


def start_rank(fd: int, rank: int, num_ranks: int) -> subprocess.Popen[bytes]:
    """A child that has nothing of ours but fd, and says what it has to say on stderr."""
    command = [sys.executable, "-m", "minipaged.parallel.rank", str(fd)]
    threads = str(max(1, len(os.sched_getaffinity(0)) // num_ranks))
    own = {
        "OMP_NUM_THREADS": threads,
        "NUMBA_NUM_THREADS": threads,
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_SOCKET_IFNAME": "lo",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
    }
    set_here = {"LOCAL_RANK": str(rank), "PYTHONPATH": os.pathsep.join(sys.path)}
    environment = {**own, **os.environ, **set_here}
    return subprocess.Popen(
        command, pass_fds=[fd], stdin=subprocess.DEVNULL, stdout=2, env=environment, start_new_session=True
    )
