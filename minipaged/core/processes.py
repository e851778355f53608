"""A process for each replica: started together, reached over sockets that only their owner can open, missed at once.

    start       folder, only ours     0/inbox  0/outbox  1/inbox ...      whoever reads binds, whoever sends connects
    ready       folder gone: sockets that are connected need no names, so none is left behind, whatever is killed
    death       a descriptor of the process wakes whoever waits for news; its last words, or its signal, are the reason

A message that cannot be read is the end of what its replica was working on, for some of it is lost: nobody is left
waiting. Invariant: every process that was started is gone when `close` returns or this process ends, and whatever they
have started with them. (From level 07.)"""

import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import zmq

from ..config import EngineConfig
from .messages import Command, Died, Event, Ready, Start, Stop, decode_event, encode, pack_config
from .process import INBOX, OUTBOX
from .wire import Lost

COMMAND = (sys.executable, "-m", "minipaged.core")
ROOT = Path(__file__).parents[2]
RECONNECT_MS = 20  # until the other side is there
LONGEST_FOLDER = 60  # characters: the name of a socket may have 107
GOODBYE_S = 5.0  # for a core to leave by itself

Socket = zmq.Socket[bytes]


class Link:
    """One replica's process, and our ends of its sockets."""

    def __init__(self, context: "zmq.Context[Socket]", folder: Path, command: Sequence[str], env: dict[str, str]):
        folder.mkdir()
        self.inbox, self.outbox = context.socket(zmq.PUSH), context.socket(zmq.PULL)
        for socket in (self.inbox, self.outbox):
            socket.set_hwm(0)  # whoever sends never waits
        self.inbox.reconnect_ivl = RECONNECT_MS
        self.inbox.connect(f"ipc://{folder / INBOX}")
        self.outbox.bind(f"ipc://{folder / OUTBOX}")
        # a group of its own: Ctrl-C at the terminal is not meant for it
        self.process = subprocess.Popen([*command, str(folder)], stdin=subprocess.PIPE, env=env, process_group=0)
        self.pidfd = os.pidfd_open(self.process.pid)
        self.is_alive = True

    def send(self, command: Command) -> None:
        self.inbox.send(encode(command), zmq.NOBLOCK)

    def receive(self) -> list[Event | Lost]:
        """Whatever has come."""
        events: list[Event | Lost] = []
        while self.outbox.poll(0):
            message = self.outbox.recv()
            try:
                events.append(decode_event(message))
            except ValueError as error:
                events.append(Lost(f"{len(message)} bytes from the engine cannot be read: {error}"))
        return events

    def bury(self) -> str:
        """Once it is gone, or to make sure that it goes: whatever it has started goes with it. Returns how it ended."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # not reaped yet, so the number is still its own
        code = self.process.wait()
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


class ProcessWire:
    """Raises ValueError for what a core refuses, RuntimeError for one that cannot start; then nothing is left."""

    def __init__(
        self,
        config: EngineConfig,
        num_replicas: int,
        start_timeout_s: float = 600.0,
        command: Sequence[str] = COMMAND,
    ):
        self.num_replicas, self.links = num_replicas, list[Link]()
        self.context: zmq.Context[Socket] = zmq.Context()
        self.close = weakref.finalize(self, leave_nothing, self.context, self.links)
        short = len(tempfile.gettempdir()) <= LONGEST_FOLDER
        folder = Path(tempfile.mkdtemp(prefix="minipaged-", dir=None if short else "/tmp"))
        try:
            self.start(config, folder, command)
            self.configs = self.wait_until_ready(time.monotonic() + start_timeout_s, start_timeout_s)
        except BaseException:
            self.close.detach()
            leave_nothing(self.context, self.links, patience_s=0.0)
            raise
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def start(self, config: EngineConfig, folder: Path, command: Sequence[str]) -> None:
        for replica in range(self.num_replicas):
            env = environment(config, replica, self.num_replicas)
            self.links.append(Link(self.context, folder / str(replica), command, env))
            self.links[-1].send(Start(pack_config(config), replica))

    def wait_until_ready(self, deadline: float, timeout_s: float) -> list[EngineConfig]:
        configs: dict[int, EngineConfig] = {}
        while len(configs) < self.num_replicas:
            for replica, event in self.receive(max(0.0, deadline - time.monotonic())):
                if isinstance(event, Ready):
                    configs[replica] = EngineConfig(**event.config)
                elif isinstance(event, Died):
                    raise self.failure(replica, event)
            if time.monotonic() > deadline:
                late = ", ".join(str(i) for i in range(self.num_replicas) if i not in configs)
                raise RuntimeError(f"replica {late} was not ready within {timeout_s:g} s")
        return [configs[replica] for replica in range(self.num_replicas)]

    def failure(self, replica: int, died: Died) -> Exception:
        where = f"replica {replica}: " if self.num_replicas > 1 else ""
        error = (ValueError if died.refused else RuntimeError)(where + died.error)
        if died.traceback:
            error.add_note(died.traceback)
        return error

    def send(self, replica: int, command: Command) -> None:
        self.links[replica].send(command)

    def receive(self, timeout_s: float | None) -> list[tuple[int, Event | Lost]]:
        """Waits for the first event; a replica's death is its last."""
        poller, living = zmq.Poller(), [i for i, link in enumerate(self.links) if link.is_alive]
        if not living:
            return []
        for i in living:
            poller.register(self.links[i].outbox, zmq.POLLIN)
            poller.register(self.links[i].pidfd, zmq.POLLIN)
        ready = dict(poller.poll(None if timeout_s is None else round(1000 * timeout_s)))
        events: list[tuple[int, Event | Lost]] = []
        for i in living:
            has_ended = self.links[i].pidfd in ready  # asked before its last words are read
            events += [(i, event) for event in self.links[i].receive()]
            if has_ended or any(isinstance(event, Died) for replica, event in events if replica == i):
                events.append((i, self.end(i)))
        return events

    def end(self, replica: int) -> Died:
        link = self.links[replica]
        link.is_alive = False
        return Died(f"its process {link.process.pid} {link.bury()}")


def environment(config: EngineConfig, replica: int, num_replicas: int) -> dict[str, str]:
    """A replica's share of the machine, and the library that this process has."""
    env = dict(os.environ)
    if "site-packages" not in ROOT.parts:
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), env.get("PYTHONPATH")]))
    if num_replicas > 1:
        share = max(1, len(os.sched_getaffinity(0)) // (num_replicas * config.num_ranks))  # of each rank
        for name in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS"):
            env.setdefault(name, str(share))
        if config.device != "cpu" and (devices := find_gpus()):
            env["CUDA_VISIBLE_DEVICES"] = ",".join(share_out(devices, config, replica, num_replicas))
    return env


def find_gpus() -> list[str]:
    """As CUDA would number them; asked without torch."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name.strip() for name in visible.split(",") if name.strip()]
    return [str(i) for i in range(len(list(Path("/dev").glob("nvidia[0-9]*"))))]


def share_out(devices: list[str], config: EngineConfig, replica: int, num_replicas: int) -> list[str]:
    """One for each of a replica's ranks, and none twice. Raises ValueError if there are too few."""
    num_ranks = config.num_ranks
    if (needed := num_replicas * num_ranks) > len(devices):
        ranks = f"data_parallel_size {num_replicas} x {num_ranks} ranks each"
        raise ValueError(f"{ranks} need {needed} GPUs; there are {len(devices)} (or use device cpu)")
    return devices[replica * num_ranks : (replica + 1) * num_ranks]


def leave_nothing(context: "zmq.Context[Socket]", links: list[Link], patience_s: float = GOODBYE_S) -> None:
    """Ask all to leave, wait a moment, and see that they are gone."""
    living = [link for link in links if link.is_alive]
    for link in living:
        link.send(Stop())
    deadline = time.monotonic() + patience_s
    for link in living:
        select.select([link.pidfd], [], [], max(0.0, deadline - time.monotonic()))
        link.is_alive = False
        link.bury()
    for link in links:
        os.close(link.pidfd)
        if link.process.stdin:
            link.process.stdin.close()
    context.destroy(linger=0)
