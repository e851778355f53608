"""From a command to a server that answers, and from a signal to nothing left.

    bind -> engine -> listen -> ... -> SIGTERM -> nobody new (503) -> drain, up to a limit -> end -> exit 0
                                       again: at once

The address is taken before the model is loaded, so that a port in use is told at once, and listened at when there is
somebody to answer. Invariant: when `serve` returns, every answer has ended, and no process, task or port is left.
(From level 08.)"""

import asyncio
import logging
import resource
import signal
import socket
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import uvicorn
import uvloop

from ..cli import leaving_at_once
from .app import make_app
from .frontend import AnyLLM, Frontend
from .patience import MAX_CONNECTIONS, Connection
from .settings import ServerSettings, bind

SIGNALS = (signal.SIGTERM, signal.SIGINT)
LAST_WORDS_S = 2  # for the errors of those who were ended to reach their clients


class Server(uvicorn.Server):
    """uvicorn's, which leaves the signals to whoever started it."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


def serve(make_llm: Callable[[], Any], model: str, settings: ServerSettings) -> None:
    """Until a signal comes. Raises ValueError for an address that is taken, whatever make_llm raises, and RuntimeError
    with the reason at the end if the engine has died."""
    with bind(settings) as listener, leaving_at_once():
        make_room()
        write_log_lines()
        llm = make_llm()
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(run(llm, settings.name_of(model), settings, listener))
            reason = llm.error
        finally:
            llm.shutdown()
    if reason is not None:
        raise RuntimeError(reason)


def make_room() -> None:
    """Every connection is an open file, and often only 1,024 are allowed where more could be."""
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * MAX_CONNECTIONS if most == resource.RLIM_INFINITY else min(2 * MAX_CONNECTIONS, most)
    if now != resource.RLIM_INFINITY and now < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


async def run(llm: AnyLLM, name: str, settings: ServerSettings, listener: socket.socket) -> None:
    front = Frontend(llm, name, settings.max_waiting)
    server = Server(configure(front, settings))
    closing = Closing(front, server, settings.shutdown_timeout)
    closing.listen()
    listener.listen()  # from here on whoever knocks is heard, if a moment later
    print(f"{front.name} is served at {settings.scheme}://{show(listener.getsockname())}", flush=True)
    await server.serve(sockets=[listener])
    await closing.wait()


def show(address: Any) -> str:
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def configure(front: Frontend, settings: ServerSettings) -> uvicorn.Config:
    return uvicorn.Config(
        make_app(front, settings),
        http=Connection,
        lifespan="off",
        access_log=False,
        log_config=None,
        log_level="warning",
        server_header=False,
        timeout_graceful_shutdown=LAST_WORDS_S,
        ssl_keyfile=settings.ssl_keyfile,
        ssl_certfile=settings.ssl_certfile,
    )


class Closing:
    """What a signal begins, and a second one hurries."""

    def __init__(self, front: Frontend, server: Server, timeout_s: float):
        self.front, self.server, self.timeout_s = front, server, timeout_s
        self.work: asyncio.Task[None] | None = None

    def listen(self) -> None:
        for number in SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, self.begin)

    def begin(self) -> None:
        if self.work is None:
            self.work = asyncio.create_task(self.close())
        else:
            self.work.cancel()
            self.front.end_all()  # cut off instead, each would be a traceback in the log
            self.server.should_exit = True

    async def close(self) -> None:
        if self.front.gate.num_inside:
            print(f"ending: {self.front.gate.num_inside} answers are waited for", file=sys.stderr, flush=True)
        if not await self.front.gate.drain(self.timeout_s):
            self.front.end_all()
        self.server.should_exit = True

    async def wait(self) -> None:
        if self.work:
            await asyncio.gather(self.work, return_exceptions=True)


def write_log_lines() -> None:
    """The access log and warnings go to stderr; each line is whole."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    for name, level in (("minipaged", logging.INFO), ("uvicorn", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.setLevel(level)
        logger.addHandler(handler)
