"""OpenTelemetry: a span for every request, and below it what the engine did, choice by choice.

Imports OpenTelemetry; nothing else does, so that a server without traces never loads it.
"""

from __future__ import annotations

import time

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.propagate import extract
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, Status, StatusCode

from holdover import __version__
from holdover.engine.request import Output
from holdover.server.asgi import App, Message, Receive, Scope, Send
from holdover.server.middleware import QUIET

_OPERATIONS = {"/v1/chat/completions": "chat", "/v1/completions": "text_completion"}


class Tracing:
    """Makes spans.

    Args:
        provider: gives them to an exporter.
    """

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("holdover", __version__)

    @classmethod
    def from_environment(cls) -> Tracing:
        """Traces sent as OTLP over HTTP, as the variables ``OTEL_*`` say."""
        resource = Resource.create()
        if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):
            resource = resource.merge(Resource({SERVICE_NAME: "holdover"}))
        provider = TracerProvider(resource=resource)
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        return cls(provider)

    def middleware(self, app: App) -> App:
        """``app``, with a span around every request but those that machines repeat all day.

        It goes on from the trace that the client names (W3C ``traceparent``).
        """

        async def traced(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http" or scope["path"] in QUIET:
                await app(scope, receive, send)
                return
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
            attributes = {"http.request.method": scope["method"], "url.path": scope["path"]}
            if scope["path"] in _OPERATIONS:
                attributes |= {
                    "gen_ai.operation.name": _OPERATIONS[scope["path"]],
                    "gen_ai.provider.name": "holdover",
                }
            with self._tracer.start_as_current_span(
                scope["method"], extract(headers), SpanKind.SERVER, attributes
            ) as span:

                async def send_noted(message: Message) -> None:
                    if message["type"] == "http.response.start":
                        span.set_attribute("http.response.status_code", message["status"])
                        if message["status"] >= 500:
                            span.set_status(StatusCode.ERROR)
                    await send(message)

                try:
                    await app(scope, receive, send_noted)
                finally:
                    _name(span, scope)

        return traced

    def record(self, output: Output, *, model: str, choice: int, is_first: bool) -> None:
        """Say how a choice ran, in the request's span and in spans below it.

        Args:
            output: as it ended.
            model: the name that the model is served by.
            choice: its number.
            is_first: whether its prompt is new: it counts once.
        """
        span = trace.get_current_span()
        _add(span, output, model, is_first=is_first)
        timing, cache = output.timing, output.cache
        end = time.time_ns()
        submitted = end - int(timing.total * 1e9)
        admitted = submitted + int(timing.queued * 1e9)
        began = end if timing.first_token is None else submitted + int(timing.first_token * 1e9)
        hit = {
            "holdover.cache.state_depth": cache.state_depth,
            "holdover.cache.kv_depth": cache.kv_depth,
            "holdover.cache.reused": cache.reused,
            "holdover.cache.recomputed": cache.recomputed,
            "holdover.cache.reason": cache.reason,
            "gen_ai.usage.input_tokens": len(output.prompt_token_ids),
        }
        hit |= {"holdover.cache.lineage": cache.lineage} if cache.lineage is not None else {}
        written = {
            "gen_ai.usage.output_tokens": len(output.token_ids),
            "gen_ai.response.finish_reasons": [output.finish_reason],
        }
        self._child("queue", submitted, admitted, choice, {})
        self._child("prefill", admitted, began, choice, hit)
        self._child("decode", began, end, choice, written)

    def fail(self, error: Exception) -> None:
        """Say that the request that runs has failed, also where its status was sent already."""
        span = trace.get_current_span()
        span.set_attribute("error.type", type(error).__name__)
        span.set_status(Status(StatusCode.ERROR, str(error)))

    def close(self) -> None:
        """Send what was not sent yet. Blocks."""
        self._provider.shutdown()

    def _child(self, name: str, start: int, end: int, choice: int, attributes: dict[str, object]) -> None:
        if end > start:
            span = self._tracer.start_span(name, start_time=start, attributes={"holdover.choice": choice, **attributes})  # type: ignore[dict-item]
            span.end(end)


def _name(span: trace.Span, scope: Scope) -> None:
    """What is known only in the end: the id, the client, and which route it was, without what stands for one thing."""
    state = scope.get("state", {})
    span.set_attribute("holdover.request_id", state.get("request_id", ""))
    if (route := scope.get("route")) is not None:
        span.set_attribute("http.route", route.path)
        span.update_name(f"{scope['method']} {route.path}")


def _add(span: trace.Span, output: Output, model: str, *, is_first: bool) -> None:
    """Add a choice to the totals of its request."""
    known = dict(getattr(span, "attributes", None) or {})

    def total(name: str, more: int) -> None:
        span.set_attribute(name, known.get(name, 0) + more)

    span.set_attributes({"gen_ai.request.model": model, "gen_ai.response.model": model})
    total("gen_ai.usage.output_tokens", len(output.token_ids))
    if is_first:
        total("gen_ai.usage.input_tokens", len(output.prompt_token_ids))
        total("gen_ai.usage.cache_read.input_tokens", output.cache.state_depth + output.cache.reused)
    reasons = "gen_ai.response.finish_reasons"
    span.set_attribute(reasons, [*known.get(reasons, ()), output.finish_reason])
