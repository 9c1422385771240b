"""The application: routes, and errors in OpenAI's form."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

from fastapi import FastAPI, Request, Response

from holdover.engine.async_engine import AsyncEngine
from holdover.errors import RequestError
from holdover.server.answers import ChatCompletion, Completion, Health, Model, Models
from holdover.server.auth import Authentication
from holdover.server.cache import PINS, PinRequest, add_cache
from holdover.server.chunks import CHUNKS, ChunkRequest, add_chunks
from holdover.server.errors import ApiError, as_api_error
from holdover.server.gate import Admission, Gate
from holdover.server.jobs import chat_job, completion_job
from holdover.server.methods import Head, allowed
from holdover.server.middleware import RequestId
from holdover.server.openapi import DESCRIPTION, describe, operation
from holdover.server.options import ServerOptions
from holdover.server.parsing import parse
from holdover.server.schemas import ChatRequest, CompletionRequest, GenerationRequest
from holdover.server.service import MakeJob, Service
from holdover.server.status import add_page
from holdover.server.wire import Json, error_response, json_response, read_object

if TYPE_CHECKING:
    from holdover.server.tracing import Tracing

Asked = TypeVar("Asked", bound=GenerationRequest)

_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_CHAT, _COMPLETIONS = "/v1/chat/completions", "/v1/completions"
# where requests run something and take a place
_RUNNING = frozenset({_CHAT, _COMPLETIONS, PINS, CHUNKS})
_BODIES = (ChatRequest, CompletionRequest, PinRequest, ChunkRequest)


def create_app(
    engine: AsyncEngine,
    *,
    model_name: str,
    options: ServerOptions | None = None,
    gate: Gate | None = None,
    tracing: Tracing | None = None,
) -> FastAPI:
    """The server's application. It owns ``engine`` and closes it when it shuts down.

    Args:
        engine: the engine that answers.
        model_name: the name that clients must ask for.
        options: how clients are treated.
        gate: what counts requests, for those who want to drain it; made from the options by default.
        tracing: makes a span of every request; None for no traces.
    """
    options = options or ServerOptions()
    gate = gate or gate_of(engine, options)
    service = Service(engine, model_name, tracing)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        # off the loop, which still delivers the end of each request
        await asyncio.to_thread(service.close)

    # no pages of the description: they would be fetched from elsewhere
    app = FastAPI(
        title="Holdover",
        lifespan=lifespan,
        openapi_url=DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    # the last one is the outermost
    app.add_middleware(Head)
    app.add_middleware(
        Admission, gate=gate, paths=_RUNNING, on_refusal=lambda: service.metrics.count_request("rejected")
    )
    if options.keys:
        app.add_middleware(Authentication, keys=options.keys, public=options.public)
    app.add_middleware(RequestId)
    if tracing is not None:
        app.add_middleware(tracing.middleware)
    _add_errors(app)
    _add_generation(app, service, options)
    _add_reports(app, service, gate)
    add_cache(app, engine, options.max_body)
    add_chunks(app, engine, options.max_body)
    add_page(app, engine, model_name, gate, service.metrics)
    describe(app, _BODIES, model=model_name, public=options.public if options.keys else None)
    return app


def gate_of(engine: AsyncEngine, options: ServerOptions) -> Gate:
    """A gate as wide as the engine and the options allow."""
    running = engine.engine.core.limits.max_running
    return Gate(running=running, waiting=options.max_waiting, per_client=options.max_per_key)


def _add_generation(app: FastAPI, service: Service, options: ServerOptions) -> None:
    @app.post(
        _CHAT,
        **operation(
            "Answer a conversation", ChatCompletion, body=ChatRequest, events=True, admitted=True, errors=[404]
        ),
    )
    async def chat(request: Request) -> Response:
        return await _generate(request, service, options, ChatRequest, chat_job)

    @app.post(
        _COMPLETIONS,
        **operation("Go on with a text", Completion, body=CompletionRequest, events=True, admitted=True, errors=[404]),
    )
    async def complete(request: Request) -> Response:
        return await _generate(request, service, options, CompletionRequest, completion_job)


async def _generate(
    request: Request,
    service: Service,
    options: ServerOptions,
    schema: type[Asked],
    make: MakeJob[Asked],
) -> Response:
    try:
        service.check_engine()
        asked = parse(schema, await read_object(request, options.max_body))
        service.check_model(asked.model)
        asked.check()
        job = await service.prepare(make, asked)
    except (ApiError, RequestError):
        service.metrics.count_request("rejected")
        raise
    return await service.answer(request, job, stream=bool(asked.stream))


def _add_reports(app: FastAPI, service: Service, gate: Gate) -> None:
    started = int(time.time())

    def model() -> Json:
        context = service.engine.engine.prepare.max_context
        return {
            "id": service.model_name,
            "object": "model",
            "created": started,
            "owned_by": "holdover",
            "max_model_len": context,
        }

    @app.get("/v1/models", **operation("List the models: the one that is served", Models))
    async def models() -> Response:
        return json_response({"object": "list", "data": [model()]})

    @app.get("/v1/models/{name:path}", **operation("Describe a model", Model, errors=[404]))
    async def one_model(name: str) -> Response:
        service.check_model(name)
        return json_response(model())

    @app.get("/health", **operation("Say whether requests are taken", Health))
    async def health() -> Response:
        service.check_engine()
        if gate.is_draining:
            return json_response({"status": "draining"}, 503)
        return json_response({"status": "ok"})

    @app.get("/metrics", **operation("Show metrics to Prometheus", media="text/plain"))
    async def metrics() -> Response:
        return Response(await service.metrics.render(service.engine), media_type=_METRICS_TYPE)


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(ApiError)
    @app.exception_handler(RequestError)
    async def refused(request: Request, error: Exception) -> Response:
        return error_response(as_api_error(error, request.state.request_id))

    @app.exception_handler(404)
    async def not_found(request: Request, _: Exception) -> Response:
        message = f"there is nothing at {request.method} {request.url.path}"
        return error_response(ApiError(404, message, code="unknown_url"))

    @app.exception_handler(405)
    async def not_allowed(request: Request, _: Exception) -> Response:
        message = f"{request.url.path} does not answer to {request.method}"
        methods = {"allow": allowed(app, request.scope)}
        if request.method == "OPTIONS":
            return Response(status_code=204, headers=methods)
        return error_response(ApiError(405, message, code="method_not_supported", headers=methods))
