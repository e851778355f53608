"""A real server on a real socket, in a thread of the test's own process: no start-up to wait for, nothing left over."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from minipaged.serving.frontend import Frontend
from minipaged.serving.server import Server, configure
from minipaged.serving.settings import ServerSettings, bind


@dataclass
class Running:
    url: str
    front: Frontend
    llm: Any


@contextmanager
def running(make_llm: Callable[[], Any], name: str = "tiny", **settings: Any) -> Iterator[Running]:
    """make_llm is called in the server's thread, and entered there."""
    chosen = ServerSettings(**{"port": 0, "served_model_name": name, **settings})
    started: Future[tuple[Running, Server]] = Future()

    async def serve() -> None:
        async with make_llm() as llm:
            front = Frontend(llm, name, chosen.max_waiting)
            server = Server(configure(front, chosen))
            host, port = listener.getsockname()[:2]
            listener.listen()
            started.set_result((Running(f"{chosen.scheme}://{host}:{port}", front, llm), server))
            await server.serve(sockets=[listener])

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)

    with bind(chosen) as listener, ThreadPoolExecutor(1) as thread:
        done = thread.submit(run)
        found, server = started.result(60)
        try:
            yield found
        finally:
            server.should_exit = True
            done.result(30)
