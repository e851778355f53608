"""Every route of the server, and what it is made of.

    GET   /health  /version  /metrics  /v1/models  /v1/models/{name}  /
    POST  /v1/completions  /v1/chat/completions  /tokenize  /detokenize

Routes only: what they do is in `frontend.py`, what they read in `protocol.py`, what they refuse in `errors.py`.
Invariant: whatever happens inside, the answer is OpenAI's JSON, and never a page of the framework's. (From level
08.)"""

import time
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.middleware.cors import CORSMiddleware

from .doorway import AccessLog, Answered, CheckedRoute, KeyLock, KnownHost
from .errors import ApiError, add_error_handlers, refused
from .frontend import Frontend
from .observatory import make_observatory
from .protocol import ChatRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest
from .reading import detokenize, tokenize_request
from .settings import VERSION, ServerSettings


def make_app(front: Frontend, settings: ServerSettings) -> FastAPI:
    app = FastAPI(title="minipaged", version=VERSION, docs_url=None, redoc_url=None)
    app.state.readers = front.readers  # for long bodies
    for make in (make_api, make_tools, make_status, *([make_observatory] if settings.observatory else [])):
        app.include_router(make(front))
    add_error_handlers(app)
    app.add_middleware(Answered)
    if settings.api_key is not None:
        app.add_middleware(KeyLock, api_key=settings.api_key)
    if settings.is_private:
        app.add_middleware(KnownHost, names=(settings.host, *settings.allowed_hosts))
    if settings.allowed_origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=settings.allowed_origins, allow_methods=["*"], allow_headers=["*"]
        )
    app.add_middleware(AccessLog)
    return app


def make_api(front: Frontend) -> APIRouter:
    """What OpenAI's clients use."""
    router, started = APIRouter(route_class=CheckedRoute), int(time.time())
    model = {"id": front.name, "object": "model", "created": started, "owned_by": "minipaged"}
    model |= {"root": front.llm.config.model, "max_model_len": front.llm.config.max_model_len}

    @router.post("/v1/completions")
    async def completions(body: CompletionRequest, request: Request) -> Response:
        return await front.complete(body, request)

    @router.post("/v1/chat/completions")
    async def chat_completions(body: ChatRequest, request: Request) -> Response:
        return await front.chat(body, request)

    @router.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [model]}

    @router.get("/v1/models/{name:path}")
    async def one_model(name: str) -> dict[str, Any]:
        front.check_model(name)
        return model

    return router


def make_tools(front: Frontend) -> APIRouter:
    """Text to tokens and back."""
    router = APIRouter(route_class=CheckedRoute)

    @router.post("/tokenize")
    async def tokenize(body: TokenizeRequest, request: Request) -> JSONResponse:
        front.check_model(body.model)
        with refused():
            found = await front.readers.read(request.scope["body_bytes"], tokenize_request, body, front.desk)
        return JSONResponse({**found, "max_model_len": front.llm.config.max_model_len})

    @router.post("/detokenize")
    async def from_tokens(body: DetokenizeRequest, request: Request) -> JSONResponse:
        front.check_model(body.model)
        with refused({"prompt_token_ids": "tokens"}):
            text = await front.readers.read(request.scope["body_bytes"], detokenize, body, front.desk)
        return JSONResponse({"prompt": text})

    return router


def make_status(front: Frontend) -> APIRouter:
    """How the server is."""
    router = APIRouter()

    @router.get("/health")
    async def health() -> dict[str, str]:
        if not front.llm.is_alive:
            raise ApiError(500, "the engine has died", code="engine_dead")
        front.gate.check_open()
        return {"status": "ok"}

    @router.get("/version")
    async def server_version() -> dict[str, str]:
        return {"version": VERSION}

    @router.get("/metrics")
    async def metrics() -> Response:
        return Response(front.metrics.render(), media_type=CONTENT_TYPE_LATEST)

    return router
