"""Whatever goes wrong reaches the client as OpenAI's error body, with a status that says whose fault it was.

    400  malformed, out of range, cannot fit      404  model or route        413  body over 8 MiB
    401  key                                      408  body or head too late 421  called by a name that is not ours
    500  the request failed, or the engine died   503  queue full, or about to stop (with Retry-After)

    {"error": {"message": "n must be a whole number in [1, 128], not 200",
               "type": "invalid_request_error", "param": "n", "code": null}}

Invariant: what the client did wrong is told in one sentence that names the field; what the server did wrong tells no
internals, the log has those. (From level 08.)"""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from .async_llm import EngineDeadError, QueueFullError
from .protocol import BODIES, FIELDS

RETRY_AFTER_S = 1
SHOWN_CHARACTERS = 80  # of a value that was refused
MESSAGE_CHARACTERS = 1000  # of a whole sentence: nobody is sent back megabytes of their own


class ApiError(Exception):
    """An answer other than 200."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ):
        super().__init__(shorten(message))
        self.status, self.param, self.code, self.headers = status, param, code, headers

    @property
    def body(self) -> dict[str, Any]:
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        error = {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        return {"error": error}


def shorten(message: str) -> str:
    """Its beginning and its end, if it is long."""
    half = MESSAGE_CHARACTERS // 2
    return message if len(message) <= 2 * half else f"{message[:half]} ... {message[-half:]}"


def failed(reason: str | None) -> ApiError:
    """Of a request that ended with "error"."""
    return ApiError(500, f"the request failed: {reason or 'no reason is known'}")


def busy(message: str, code: str = "overloaded") -> ApiError:
    return ApiError(503, message, code=code, headers={"Retry-After": str(RETRY_AFTER_S)})


def closing(message: str = "the server is shutting down") -> ApiError:
    return busy(message, "shutting_down")


def too_large(limit: int) -> HTTPException:
    """The one kind of error that the framework lets pass while it reads a body."""
    return HTTPException(413, f"the body is larger than {limit} bytes")


def too_slow(limit_s: float) -> HTTPException:
    return HTTPException(408, f"the body did not come within {limit_s:g} s", {"Connection": "close"})


def no_model(name: str, served: str) -> ApiError:
    message = f"the model {name!r} does not exist here; {served!r} does"
    return ApiError(404, message, param="model", code="model_not_found")


@contextmanager
def refused(words: Mapping[str, str] | None = None) -> Iterator[None]:
    """What the front desk refuses in here is the client's to mend. words: the desk's -> what this request calls it."""
    mine = words or {}
    try:
        yield
    except (ValueError, TypeError) as error:
        message = re.sub(r"\w+", lambda word: mine.get(word[0], word[0]), shorten(str(error)))
        raise ApiError(400, message, param=named_field(message, mine.get("the prompt", "prompt"))) from error


def named_field(message: str, prompt: str) -> str | None:
    """Sentences of refusal begin with the field, if it is one field's fault: "logit_bias[3] must be ..."."""
    word = re.match(r"[a-z_]+", message)
    if word and word[0] in FIELDS:
        return word[0]
    return prompt if message.startswith(("a prompt", "the prompt", "the chat template")) else None


def describe(error: RequestValidationError, route: str) -> ApiError:
    """The first of what pydantic found, in the house's words."""
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return ApiError(400, f"the body is no JSON: {first['ctx']['error']} at character {first['loc'][-1]}")
    if len(first["loc"]) < 2:
        return ApiError(400, "the body must be a JSON object")
    path = [str(part) for part in first["loc"][1:]]
    if first["type"] == "missing":
        return ApiError(400, f"{path[0]} is missing", param=path[0])
    if first["type"] == "value_error":  # of our own validators
        return ApiError(400, f"{path[0]}: {first['ctx']['error']}", param=path[0])
    legal = BODIES[route].model_fields[path[0]].description
    return ApiError(400, f"{path[0]} must be {legal}{value(error.body, path[0])}", param=path[0])


def value(body: Any, name: str) -> str:
    """As the client wrote it, if that is short."""
    pieces = json.JSONEncoder().iterencode(body.get(name)) if isinstance(body, dict) else ()
    given = "".join(islice(pieces, SHOWN_CHARACTERS + 1))  # no more of it is written than could be shown
    return f", not {given}" if 0 < len(given) <= SHOWN_CHARACTERS else ""


def respond(error: ApiError) -> Response:
    """No lone surrogate of a message breaks the writer of the answer."""
    content = json.dumps(error.body, ensure_ascii=False).encode(errors="replace")
    return Response(content, error.status, error.headers, media_type="application/json")


def explain(error: Exception) -> ApiError:
    """What a client is told of whatever was raised: of what nobody foresaw, nothing."""
    if isinstance(error, EngineDeadError):
        return ApiError(500, "the engine has died", code="engine_dead")
    if isinstance(error, QueueFullError):
        return busy(str(error))
    return error if isinstance(error, ApiError) else ApiError(500, "an internal error; the server's log says more")


def from_http(error: HTTPException, request: Request) -> ApiError:
    """What the framework itself found: no such route, no such method, a body that cannot be read."""
    where = f"{request.method} {request.url.path}"
    messages = {404: f"there is no route {where}", 405: f"there is no {where}; another method may do"}
    return ApiError(error.status_code, messages.get(error.status_code, error.detail), headers=error.headers)


def add_error_handlers(app: FastAPI) -> None:
    @app.exception_handler(ApiError)
    async def api(request: Request, error: ApiError) -> Response:
        return respond(error)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        return respond(describe(error, request.scope["route"].path))

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        return respond(from_http(error, request))

    @app.exception_handler(EngineDeadError)
    @app.exception_handler(QueueFullError)
    async def engine(request: Request, error: Exception) -> Response:
        return respond(explain(error))
