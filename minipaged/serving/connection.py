"""Nobody works for a client that has gone: whatever is done for it is done while it listens.

    client   ----------------------- hangs up
    work     prompt, token, token, to|            cancelled there, which aborts the request
    send     ....chunk...chunk.......             waits while the client reads slowly: nothing piles up

One rule for both kinds of answers, whole or in pieces. Invariant: when the client has gone, so has the work, and with
it the request and its blocks. (From level 08.)"""

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from typing import Any, TypeVar

from fastapi.responses import Response
from starlette.types import Receive, Scope, Send

T = TypeVar("T")
CLIENT_GONE = 499  # nobody sees it but the log, where nginx has made it known


class ClientGoneError(Exception):
    pass


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """What work returns. Raises ClientGoneError, with the work cancelled, when the client hangs up before."""
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(hang_up(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGoneError
        return working.result()
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def hang_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Server-sent events: the first, and a generator of the others that is closed whatever happens."""

    def __init__(self, first: bytes, events: AsyncGenerator[bytes, None]):
        super().__init__(media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        del self.headers["content-length"]
        self.first, self.events = first, events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await while_connected(receive, self.tell(send))
        except ClientGoneError:
            pass
        finally:
            await self.events.aclose()

    async def tell(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.first, "more_body": True})
        async for event in self.events:
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
