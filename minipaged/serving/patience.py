"""How long a connection may take to say something, or to hear it: whoever holds one and does nothing is let go.

    the head of a request      HEAD_S, HEAD_BYTES       408, 431       byte by byte it would hold its place for ever
    its body                   BODY_S                   408            (doorway.py)
    what it is sent            STALLED_S                closed         if nothing of it was taken in all that time
    one connection too many    MAX_CONNECTIONS          503

uvicorn lets go of whoever is silent between two requests, and has no limits of these kinds. Invariant: a connection
that costs the server something moves, or it ends. (From level 08.)"""

import asyncio
import json
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from .errors import ApiError, busy

HEAD_S, HEAD_BYTES = 15.0, 64 << 10
STALLED_S = 300.0
MAX_CONNECTIONS = 4096


class Connection(HttpToolsProtocol):
    """uvicorn's, with a clock for each of the two directions."""

    head_timer: asyncio.TimerHandle | None = None
    stall_timer: asyncio.TimerHandle | None = None
    num_head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            self.refuse(busy(f"{MAX_CONNECTIONS} connections are open, and there is no place for more"))
        else:
            self.expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self.forget_head()
        self.forget_reader()
        super().connection_lost(exc)

    def expect_head(self) -> None:
        late = ApiError(408, f"the head of the request did not come within {HEAD_S:g} s")
        self.head_timer, self.num_head_bytes = self.loop.call_later(HEAD_S, self.refuse, late), 0

    def forget_head(self) -> None:
        if self.head_timer:
            self.head_timer.cancel()
            self.head_timer = None

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        if self.head_timer is None and (self.cycle is None or self.cycle.response_complete):
            self.expect_head()
        if self.head_timer is not None:
            self.num_head_bytes += len(data)
            if self.num_head_bytes > HEAD_BYTES:
                self.refuse(ApiError(431, f"the head of the request has more than {HEAD_BYTES} bytes"))

    def on_headers_complete(self) -> None:
        self.forget_head()
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        self.refuse(ApiError(400, "this is no HTTP request"))

    def refuse(self, error: ApiError) -> None:
        """Before there is a request that could be answered; the connection ends."""
        self.forget_head()
        if not self.transport.is_closing():
            self.transport.write(write(error))
            self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.watch_reader()

    def resume_writing(self) -> None:
        self.forget_reader()
        super().resume_writing()

    def watch_reader(self) -> None:
        left = self.transport.get_write_buffer_size()
        self.stall_timer = self.loop.call_later(STALLED_S, self.check_reader, left)

    def forget_reader(self) -> None:
        if self.stall_timer:
            self.stall_timer.cancel()
            self.stall_timer = None

    def check_reader(self, left: int) -> None:
        """Slow is no fault; who took nothing has gone, whatever its machine says."""
        if self.transport.get_write_buffer_size() >= left:
            self.transport.abort()
        else:
            self.watch_reader()


def write(error: ApiError) -> bytes:
    """An answer as it goes over the line."""
    body = json.dumps(error.body).encode()
    headers: dict[str, Any] = {"Content-Type": "application/json", "Content-Length": len(body), "Connection": "close"}
    lines = [f"{name}: {value}" for name, value in {**headers, **(error.headers or {})}.items()]
    return "\r\n".join([f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}", *lines, "", ""]).encode() + body
