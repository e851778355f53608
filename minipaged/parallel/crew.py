"""All ranks of one engine: whatever one of them says is heard at once, and the end of one is the end of all.

    ask(rank, order)   ->  a future: a rank answers in the order in which it was asked
    a line closes      ->  the others are sent home, and whoever waits gets an error that names the rank

    rank 1 is killed, and rank 0, which waits for it, fails a moment later: whose fault was it?

Whoever goes without a word is the cause; where all could still speak, the first to do so is. So bad news waits for a
moment before it is judged. Invariants: whoever waits for a future gets an answer or an error in bounded time; when a
crew has stopped, none of its ranks runs. (From level 06.)"""

import selectors
import time
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future
from contextlib import suppress
from queue import SimpleQueue
from threading import Lock, Thread, current_thread
from typing import NamedTuple, Protocol

from torch._C._distributed_c10d import TCPStore

from .lines import Line
from .messages import Failed, Order, Reply, Stop

TICK_S = 1.0  # how often to look whether somebody is late
VERDICT_S = 0.5  # how long other bad news may take to arrive
GOODBYE_S = 5.0  # for ranks to leave when they are told to; then they are made to


class RankError(RuntimeError):
    """A rank is gone, and with it its engine."""


class Launcher(Protocol):
    """Who starts the ranks, and can end them. host: an address of this host that all of them reach."""

    host: str

    def start(self, num_ranks: int) -> list[Line]:
        """A line to each. Raises ValueError for what cannot be, RuntimeError for what did not work."""

    def describe_end(self, rank: int) -> str:
        """How a rank went that said nothing, as far as can be known."""

    def stop(self, seconds: float) -> None:
        """Wait so long for all to leave; whoever has not is made to. May be called any number of times."""


class Pending(NamedTuple):
    """An answer that is due."""

    future: "Future[Reply]"
    deadline: float


class Crew:
    """Two threads from the moment it is made: one tells its ranks, one hears them."""

    def __init__(self, launcher: Launcher, num_ranks: int):
        self.launcher, self.lines = launcher, launcher.start(num_ranks)
        self.store: TCPStore | None = None  # where they meet: whoever has it here keeps its port open
        self.pending: list[deque[Pending]] = [deque() for _ in self.lines]
        self.error: Exception | None = None
        self.is_stopping = False
        self.lock = Lock()  # between an order and the end
        self.outbox: SimpleQueue[list[tuple[int, Order, Pending | None]]] = SimpleQueue()
        self.sender = Thread(target=self.send, name="to ranks", daemon=True)
        self.thread = Thread(target=self.listen, name="from ranks", daemon=True)
        self.sender.start()
        self.thread.start()

    def ask(self, rank: int, order: Order, seconds: float, beside: Iterable[tuple[int, Order]] = ()) -> "Future[Reply]":
        """What the rank will answer, which is due in `seconds`. Raises the error that ended the crew, if one did.

        What others are told beside it goes out with it: all or nothing, even if Ctrl-C comes in between."""
        self.check_alive()
        future: Future[Reply] = Future()
        due = Pending(future, time.monotonic() + seconds)
        self.outbox.put([*((other, told, None) for other, told in beside), (rank, order, due)])
        return future

    def check_alive(self) -> None:
        """Raises the error that ended the crew, if one did."""
        if self.error is not None:
            raise type(self.error)(*self.error.args)

    def tell(self, ranks: Iterable[int], order: Order) -> None:
        """An order that is not answered."""
        self.outbox.put([(rank, order, None) for rank in ranks])

    def send(self) -> None:
        """Everything in its order. If a rank is gone, whoever listens to its line will know."""
        while orders := self.outbox.get():
            # noted before anything is sent: a rank that reads no more must not keep others from being late
            expected = [due is None or self.expect(rank, due) for rank, _, due in orders]
            for (rank, order, _), is_sent in zip(orders, expected, strict=True):
                if is_sent:
                    with suppress(OSError):
                        self.lines[rank].send(order)

    def expect(self, rank: int, due: Pending) -> bool:
        """Note what is due, unless all is over."""
        with self.lock:
            if self.error is None:
                self.pending[rank].append(due)
                return True
        due.future.set_exception(type(self.error)(*self.error.args))
        return False

    def listen(self) -> None:
        """Until somebody is gone, or late, or all are."""
        ends: dict[int, Failed | str] = {}  # "": without a word
        until = float("inf")
        with selectors.DefaultSelector() as selector:
            for rank, line in enumerate(self.lines):
                selector.register(line, selectors.EVENT_READ, rank)
            while len(ends) < len(self.lines) and (left := until - time.monotonic()) > 0:
                heard = {key.data: self.hear(key.data) for key, _ in selector.select(min(TICK_S, left))}
                new = {rank: end for rank, end in (heard | self.find_late()).items() if end is not None}
                for rank in new.keys() & heard.keys():
                    selector.unregister(self.lines[rank])
                ends |= new
                until = min(until, time.monotonic() + VERDICT_S) if new else until
        self.end(self.judge(ends))

    def hear(self, rank: int) -> Failed | str | None:
        """Pass on what a rank says; its end, if it ended."""
        try:
            for reply in self.lines[rank].hear_replies():
                if isinstance(reply, Failed):
                    return reply
                if not self.pending[rank]:
                    return ""  # it answers what nobody has asked
                self.pending[rank].popleft().future.set_result(reply)
        except OSError:
            return ""
        return None

    def find_late(self) -> dict[int, Failed | str | None]:
        """Whoever should have answered by now."""
        now = time.monotonic()
        late = [rank for rank, pending in enumerate(self.pending) if pending and pending[0].deadline < now]
        return {rank: Failed("no answer came in time", is_refusal=False, trace="") for rank in late}

    def judge(self, ends: dict[int, Failed | str]) -> Exception:
        """Whose fault it was."""
        if self.is_stopping:
            return RankError("the engine has been shut down")
        [(first, failed), *_] = ends.items()
        silent = [rank for rank, end in ends.items() if isinstance(end, str)]
        said = f"rank {first}: {failed.message}" if isinstance(failed, Failed) else ""
        if silent:
            death = f"rank {silent[0]} died: {self.launcher.describe_end(silent[0])}"
            witness, *_ = said.split(". This is typically caused by")  # gloo goes on with advice
            result: Exception = RankError(f"{death} (heard before: {witness})" if said else death)
        else:
            result = ValueError(said) if isinstance(failed, Failed) and failed.is_refusal else RankError(said)
        if isinstance(failed, Failed):
            result.add_note(failed.trace)
        return result

    def end(self, error: Exception) -> None:
        """Nobody is left when the first one hears of it."""
        self.launcher.stop(0.0)
        self.store = None  # its port is closed
        for line in self.lines:
            line.hang_up()
        with self.lock:
            self.error = type(error)(*error.args)  # not the one that is raised: its traceback would keep us all alive
        for pending in self.pending:
            while pending:
                pending.popleft().future.set_exception(error)

    def stop(self) -> None:
        """Send everybody home. May be called any number of times, by any thread."""
        self.is_stopping = True
        self.tell(range(len(self.lines)), Stop())
        self.leave(GOODBYE_S)

    def leave(self, seconds: float) -> None:
        self.launcher.stop(seconds)
        for line in self.lines:
            line.hang_up()
        self.outbox.put([])
        for thread in {self.thread, self.sender} - {current_thread()}:
            thread.join()
        self.store = None
        for line in self.lines:
            line.close()
