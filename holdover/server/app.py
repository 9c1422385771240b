"""The application: routes, and errors in OpenAI's form."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request, Response

from holdover.engine.async_engine import AsyncEngine
from holdover.errors import RequestError
from holdover.server.errors import ApiError, as_api_error
from holdover.server.middleware import RequestId
from holdover.server.parsing import parse
from holdover.server.schemas import ChatRequest, CompletionRequest, GenerationRequest
from holdover.server.service import Service
from holdover.server.shapes import ChatShape, CompletionShape, Shape
from holdover.server.wire import Json, json_response, read_object

_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def create_app(engine: AsyncEngine, *, model_name: str) -> FastAPI:
    """The server's application. It owns ``engine`` and closes it when it shuts down.

    Args:
        engine: the engine that answers.
        model_name: the name that clients must ask for.
    """
    service = Service(engine, model_name)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        # off the loop, which still delivers the end of each request
        await asyncio.to_thread(service.close)

    # no schema pages: bodies are checked by `schemas`, of which FastAPI knows nothing
    app = FastAPI(title="Holdover", lifespan=lifespan, openapi_url=None, redirect_slashes=False)
    app.add_middleware(RequestId)
    _add_errors(app)
    _add_generation(app, service)
    _add_reports(app, service)
    return app


def _add_generation(app: FastAPI, service: Service) -> None:
    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        return await _generate(request, service, ChatRequest, ChatShape)

    @app.post("/v1/completions")
    async def complete(request: Request) -> Response:
        return await _generate(request, service, CompletionRequest, CompletionShape)


async def _generate(
    request: Request, service: Service, schema: type[GenerationRequest], shape_of: type[Shape]
) -> Response:
    try:
        service.check_engine()
        asked = parse(schema, await read_object(request))
        service.check_model(asked.model)
        asked.check()
        shape = shape_of(service.model_name, service.token_text, include_usage=asked.include_usage)
        sequence = await service.prepare(asked, shape.id)
    except (ApiError, RequestError):
        service.metrics.count_request("rejected")
        raise
    return await service.answer(request, sequence, shape, stream=bool(asked.stream))


def _add_reports(app: FastAPI, service: Service) -> None:
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

    @app.get("/v1/models")
    async def models() -> Response:
        return json_response({"object": "list", "data": [model()]})

    @app.get("/v1/models/{name:path}")
    async def one_model(name: str) -> Response:
        service.check_model(name)
        return json_response(model())

    @app.get("/health")
    async def health() -> Response:
        service.check_engine()
        return json_response({"status": "ok"})

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(await service.metrics.render(service.engine), media_type=_METRICS_TYPE)


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(ApiError)
    @app.exception_handler(RequestError)
    async def refused(request: Request, error: Exception) -> Response:
        answer = as_api_error(error, request.state.request_id)
        return json_response(answer.body, answer.status)

    @app.exception_handler(404)
    async def not_found(request: Request, _: Exception) -> Response:
        answer = ApiError(404, f"there is nothing at {request.method} {request.url.path}", code="unknown_url")
        return json_response(answer.body, answer.status)

    @app.exception_handler(405)
    async def not_allowed(request: Request, error: Exception) -> Response:
        answer = ApiError(405, f"{request.url.path} does not answer to {request.method}", code="method_not_supported")
        response = json_response(answer.body, answer.status)
        response.headers.update(getattr(error, "headers", None) or {})
        return response
