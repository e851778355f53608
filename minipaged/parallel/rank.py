"""A rank is a process with a share of the model. It does what its driver says, and is gone when the driver is.

    driver    Load           Serve          Run  Run  Run  ...      Stop
                | weights      | blocks       |    |    | forward     |
    rank      Loaded         Ready          (Answer, if it has the logits)

    python -m minipaged.parallel.rank FD        a child of the driver; FD is its end of a line

Orders are heard in a thread, so that the end of the line is noticed whatever else goes on: in the middle of loading, of
a forward, or of a wait for another rank. Invariant: a rank says why it ends if it still can; it never outlives its
driver. (From level 06.)"""

import os
import signal
import socket
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from queue import SimpleQueue
from threading import Thread

import torch
from torch._C._distributed_c10d import TCPStore

from ..config import EngineConfig
from ..loading import load_model
from .lines import Line
from .messages import (
    Answer,
    Ask,
    Failed,
    Load,
    Loaded,
    Order,
    Ready,
    Rebalance,
    Rebalanced,
    Report,
    Run,
    Serve,
    Span,
    Stop,
    unfold,
)
from .place import Layout, Place, join
from .worker import Worker

MOST_SPANS = 10_000  # a rank remembers of the batches it ran, until somebody asks
LEFT_ALONE = 1  # exit code of a rank whose driver is gone


class Rank:
    """line: to the driver. leave: what to do, at once, when the driver is gone."""

    def __init__(self, line: Line, leave: Callable[[], None]):
        self.line, self.leave = line, leave
        self.orders: SimpleQueue[Order] = SimpleQueue()
        self.spans: deque[Span] = deque(maxlen=MOST_SPANS)
        self.place = Place.alone()
        Thread(target=self.listen, name="orders", daemon=True).start()

    def listen(self) -> None:
        try:
            while True:
                self.orders.put(order := self.line.hear_order())
                if isinstance(order, Stop):
                    return
        except OSError:
            self.orders.put(Stop())
            self.leave()

    def serve(self) -> bool:
        """Until told to stop; what goes wrong is said to the driver, who ends all ranks. False if something did."""
        try:
            while not isinstance(order := self.orders.get(), Stop):
                self.carry_out(order)
            self.place.everyone.leave()
        except Exception as error:
            with suppress(OSError):  # it may be the driver's end that broke this
                self.line.send(confess(error))
            return False
        return True

    def carry_out(self, order: Order) -> None:
        match order:
            case Load():
                self.load(order)
            case Serve():
                self.worker = Worker(self.model, replace(self.config, num_blocks=order.num_blocks))
                self.line.send(Ready())
            case Run():
                self.run(order)
            case Rebalance():
                self.line.send(Rebalanced(self.worker.rebalance()))
            case Ask():
                self.line.send(self.report())

    def load(self, order: Load) -> None:
        self.config = EngineConfig(**order.config)
        layout = Layout.of(self.config)
        host, port = order.store
        self.place = join(TCPStore(host, port), order.rank, layout, own_device(self.config.device))
        self.model = load_model(self.config, self.place)
        self.model.beside = order.beside
        self.line.send(Loaded(self.model.resolve(self.config).num_blocks))

    def run(self, order: Run) -> None:
        traffic = self.place.traffic
        start, waited_s = time.perf_counter(), traffic.waited_s
        if self.place.answers:
            tokens, measured = self.worker.run(*unfold(order, self.model.device))
            self.line.send(Answer(tokens, list(measured or ()), self.model.forward_s))
        else:
            self.worker.forward(order.batch)
        self.spans.append(Span(start + traffic.waited_s - waited_s, time.perf_counter()))

    def report(self) -> Report:
        """What it holds, has sent, and has done since it was last asked."""
        spans = list(self.spans)
        self.spans.clear()
        return Report(
            self.model.model.num_weight_bytes,
            self.worker.kv_cache.num_bytes,
            dict(self.place.traffic.num_bytes),
            spans,
        )


def own_device(kind: str) -> torch.device:
    """Of a host's GPUs, the one that this rank was given. Raises ValueError if there are not as many."""
    if kind == "cpu":
        return torch.device("cpu")
    index, num_gpus = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if index >= num_gpus:
        raise ValueError(f"a GPU for each rank: this host has {num_gpus}, which is too few for rank {index} here")
    return torch.device(kind, index)


def confess(error: Exception) -> Failed:
    """What a user can do wrong is said as it is; of everything else, what kind it was too."""
    is_refusal, words = isinstance(error, ValueError | TypeError), " ".join(str(error).split())
    kind = type(error).__name__
    message = words if is_refusal and words else f"{kind}: {words}" if words else kind
    return Failed(message, is_refusal, traceback.format_exc())


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's to answer
    rank = Rank(Line(socket.socket(fileno=int(sys.argv[1]))), leave=lambda: os._exit(LEFT_ALONE))
    os._exit(0 if rank.serve() else 1)  # nothing is left that an interpreter would have to put away


if __name__ == "__main__":
    main()
