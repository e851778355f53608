"""torchrun starts the ranks; the one with number 0 has the driver, and its share of the model in a thread.

    torchrun --nproc-per-node 2 -m levels.06_tensor_pipeline_parallel --tensor-parallel-size 2 \\
        --distributed-executor-backend torchrun

    process 0    driver + rank 0  (the engine is here: everything is read, said and written here)
    process 1    rank 1           serves one executor after the other, then ends
       ...                        also on other hosts: --nnodes, --rdzv-endpoint

The store that torchrun has for all of them says where the driver is: "executor 1" is the address and the key of the
first one. Invariant: a process that is not the driver leaves when the driver does. (From level 06.)"""

import atexit
import json
import os
import signal
import socket
import sys
from datetime import timedelta
from functools import cache
from itertools import count
from threading import Thread, Timer, current_thread, main_thread
from typing import NoReturn

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore
from torch.distributed import DistError

from .lines import LOOPBACK, Exchange, Line, call, make_pair
from .rank import LEFT_ALONE, Rank

CALL_S = 120.0  # for all processes to be there
PATIENCE_S = 3600.0  # for which the others wait for an engine
NO_MORE = "no more"  # instead of an address
GRACE_S = 2.0  # between torchrun's order to end and its effect on the driver


class Torchrun:
    """The launcher in the process that has the driver."""

    def __init__(self) -> None:
        self.world_size, self.host = int(read("WORLD_SIZE")), choose_host()
        self.threads: list[Thread] = []

    def start(self, num_ranks: int) -> list[Line]:
        store = find_store()
        atexit.register(say_no_more, store)
        if num_ranks != self.world_size:
            raise ValueError(f"torchrun started {self.world_size} processes; the ranks asked for are {num_ranks}")
        put_off_sigterm()
        number = store.add("executors", 1)  # and not before: the others wait for each number
        exchange = Exchange(self.host)
        try:
            store.set(f"executor {number}", json.dumps([*exchange.address, exchange.key]))
            return [self.start_here(), *exchange.accept(range(1, num_ranks), CALL_S)]
        finally:
            exchange.close()

    def start_here(self) -> Line:
        ours, theirs = make_pair()
        self.threads.append(Thread(target=Rank(theirs, leave=theirs.close).serve, name="rank 0", daemon=True))
        self.threads[-1].start()
        return ours

    def describe_end(self, rank: int) -> str:
        return "its line is closed"

    def stop(self, seconds: float) -> None:
        """The processes are torchrun's; they go when their line closes."""
        for thread in self.threads:
            thread.join(seconds)


@cache
def put_off_sigterm() -> None:
    """When a process is gone torchrun ends all others; the driver is to hear first which one it was, and to say so."""
    if current_thread() is not main_thread():
        return
    before = signal.getsignal(signal.SIGTERM)

    def end_later(number: int, frame: object) -> None:
        signal.signal(number, before)
        timer = Timer(GRACE_S, os.kill, [os.getpid(), number])
        timer.daemon = True
        timer.start()

    signal.signal(signal.SIGTERM, end_later)


def say_no_more(store: Store) -> None:
    """There is no other executor: whoever waits for one may go."""
    store.set(f"executor {store.add('executors', 1)}", NO_MORE)


def is_driver() -> bool:
    return read("RANK") == "0"


def serve() -> NoReturn:
    """Be a rank for whatever engines the driver makes, one after the other, and end when there is no other."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # torchrun's way to end us: nothing here has to be put away
    store = find_store()
    for number in count(1):
        found = wait_for(store, f"executor {number}")
        if found == NO_MORE:
            break
        host, port, key = json.loads(found)
        line = call((host, port), key, int(read("RANK")))
        if not Rank(line, leave=lambda: os._exit(LEFT_ALONE)).serve():
            sys.exit(1)
    sys.exit(0)


def wait_for(store: Store, name: str) -> str:
    try:
        store.wait([name], timedelta(seconds=PATIENCE_S))
        return str(store.get(name).decode())
    except DistError:  # torchrun itself is gone, or nobody has asked for anything in an hour
        return NO_MORE


def find_store() -> Store:
    """The one that torchrun has for its processes, from its last start on."""
    store = TCPStore(read("MASTER_ADDR"), int(read("MASTER_PORT")), is_master=False)
    return PrefixStore(f"minipaged {read('TORCHELASTIC_RESTART_COUNT')}", store)


def choose_host() -> str:
    """Loopback, unless there are other hosts."""
    if read("LOCAL_WORLD_SIZE") == read("WORLD_SIZE"):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        return LOOPBACK
    return socket.gethostbyname(read("MASTER_ADDR"))


def read(name: str) -> str:
    """Raises ValueError if torchrun did not set it."""
    if (value := os.environ.get(name)) is None:
        raise ValueError(f"distributed_executor_backend torchrun: torchrun has not started this, {name} is not set")
    return value
