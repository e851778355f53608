"""What every request passes on its way in, whatever it wants: a number and a line in the log, the key, a limit.

    request -> logged -> CORS -> known host -> locked -> answered -> routes -> limited (bodies only)

    {"request_id": "4f0c...", "method": "POST", "path": "/v1/completions", "status": 200, "seconds": 0.412}

Plain ASGI: nothing is buffered, and a client that hangs up is noticed through all of it. Invariant: without the key
nobody gets past here but to ask for the server's health; no body grows beyond 8 MiB or takes longer than a minute;
whatever is raised behind it is answered behind it, and so is logged. (From level 08.)"""

import asyncio
import base64
import binascii
import hmac
import ipaddress
import json
import logging
import re
import time
import uuid
from collections.abc import Callable, Collection, Coroutine
from typing import Any

from fastapi import Request
from fastapi.responses import Response
from fastapi.routing import APIRoute
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .bodies import BodyRequest
from .errors import ApiError, explain, respond, too_large, too_slow

MAX_BODY_BYTES, BODY_S = 8 << 20, 60.0
OPEN_PATHS = ("/health",)
log, faults = logging.getLogger("minipaged.access"), logging.getLogger("minipaged.serving")


class AccessLog:
    """Gives every request an id, which the answer carries too, and writes one line of JSON when it is over."""

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        scope["request_id"], start = uuid.uuid4().hex, time.perf_counter()
        status = 500  # unless somebody answers

        async def numbered(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", scope["request_id"].encode())]
            await send(message)

        try:
            await self.app(scope, receive, numbered)
        finally:
            write(scope, status, time.perf_counter() - start)


def write(scope: Scope, status: int, seconds: float) -> None:
    line = {name: scope[name] for name in ("request_id", "method", "path")}
    client = scope["client"][0] if scope.get("client") else None
    log.info(json.dumps({**line, "status": status, "seconds": round(seconds, 6), "client": client}))


class KnownHost:
    """A page of somebody else's, whose name was made to lead to this machine, gives that name as the host.

    Asked where only this machine is served: to a browser, such a page and this server are one site (DNS rebinding)."""

    def __init__(self, app: ASGIApp, names: Collection[str]):
        self.app, self.names = app, {"localhost", *(name.lower() for name in names)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self.knows(host := Headers(scope=scope).get("host", "")):
            advice = "--allowed-hosts names those that it may be called by"
            await respond(ApiError(421, f"this server is not known as {host!r:.100}; {advice}"))(scope, receive, send)
            return
        await self.app(scope, receive, send)

    def knows(self, host: str) -> bool:
        """An address is no name that could lead elsewhere; neither is none at all, which no browser says."""
        name = re.sub(r":\d*$", "", host).strip("[]").lower()
        return name in {"", *self.names} or name.endswith(".localhost") or is_address(name)


def is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class Answered:
    """What nobody foresaw is answered here, within the log and for whoever may read answers: not by the framework's
    outermost layer, where neither holds."""

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_begun = False

        async def noted(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self.app(scope, receive, noted)
        except Exception as error:
            if has_begun or scope["type"] != "http":
                raise  # uvicorn logs it, and ends the connection
            faults.error("%s %s failed", scope["method"], scope["path"], exc_info=error)
            await respond(explain(error))(scope, receive, send)


class KeyLock:
    """Asks for the key: as a bearer token, or as a browser's password, which opens the page at / too."""

    def __init__(self, app: ASGIApp, api_key: str):
        self.app, self.api_key = app, api_key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS or self.opens(Headers(scope=scope)):
            await self.app(scope, receive, send)
            return
        kind = "Basic" if scope["path"] == "/" else "Bearer"
        headers = {"WWW-Authenticate": f'{kind} realm="minipaged"'}
        error = ApiError(401, "the API key is missing or wrong", code="invalid_api_key", headers=headers)
        await respond(error)(scope, receive, send)

    def opens(self, headers: Headers) -> bool:
        """In the same time, whatever was given."""
        return hmac.compare_digest(given_key(headers.get("authorization", "")), self.api_key)


def given_key(authorization: str) -> bytes:
    kind, _, value = authorization.partition(" ")
    if kind.lower() == "bearer":
        return value.strip().encode("latin-1")  # as the bytes that came
    if kind.lower() != "basic":
        return b""
    try:
        return base64.b64decode(value, validate=True).partition(b":")[2]
    except (binascii.Error, ValueError):
        return b""


class CheckedRoute(APIRoute):
    """A route whose body is JSON of a size that can be read.

    Another content type is refused: a page of somebody else's could send plain text here without asking."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def checked(request: Request) -> Response:
            if request.method == "POST":
                check_headers(request.headers)
                request = BodyRequest(request.scope, counted(request.scope, request.receive))
            return await handle(request)

        return checked


def check_headers(headers: Headers) -> None:
    if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise ApiError(400, "the body must be JSON, with the header Content-Type: application/json")
    length = headers.get("content-length", "")
    if length.isdecimal() and int(length) > MAX_BODY_BYTES:
        raise too_large(MAX_BODY_BYTES)


def counted(scope: Scope, receive: Receive) -> Receive:
    """The same, until too much has come, or too slowly; scope["body_bytes"] is how much it was."""
    scope["body_bytes"], is_whole = 0, False
    deadline = asyncio.get_running_loop().time() + BODY_S

    async def receive_counted() -> Message:
        nonlocal is_whole
        try:
            async with asyncio.timeout_at(None if is_whole else deadline):
                message = await receive()
        except TimeoutError:
            raise too_slow(BODY_S) from None
        is_whole = not message.get("more_body", False)
        scope["body_bytes"] += len(message.get("body", b""))
        if scope["body_bytes"] > MAX_BODY_BYTES:
            raise too_large(MAX_BODY_BYTES)
        return message

    return receive_counted
