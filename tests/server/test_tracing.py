"""Traces: one span a request, in the client's trace, with what the engine did below it; and none of it when off."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from holdover.server.tracing import Tracing
from tests.cli.run import invoke
from tests.server.live import NAME, Live, running
from tests.server.test_failures import failing

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PROMPT = "the cat sat on the mat and the dog sat on the cat " * 6


class Traced:
    """A server, and the spans that it has ended."""

    def __init__(self, server: Live, exporter: InMemorySpanExporter) -> None:
        self.server = server
        self._exporter = exporter

    def spans(self) -> dict[str, list[ReadableSpan]]:
        """Those since the last time, by name."""
        self.server.settle()
        found: dict[str, list[ReadableSpan]] = {}
        for span in self._exporter.get_finished_spans():
            found.setdefault(span.name, []).append(span)
        self._exporter.clear()
        return found


@pytest.fixture(scope="module")
def traced(model: Path) -> Iterator[Traced]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with running(model, tracing=Tracing(provider)) as server:
        server.http.get("/health")
        yield Traced(server, exporter)


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def test_a_request_is_a_span_with_its_parts_below(traced: Traced) -> None:
    traced.spans()
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "x-request-id": "mine-7"}
    cold = traced.server.complete(PROMPT, max_tokens=5, extra_headers=headers)
    found = traced.spans()
    assert {name: len(spans) for name, spans in found.items()} == {
        "POST /v1/completions": 1,
        "queue": 1,
        "prefill": 1,
        "decode": 1,
    }
    (whole,) = found["POST /v1/completions"]
    assert whole.kind is SpanKind.SERVER
    assert whole.parent is not None
    assert (f"{whole.parent.trace_id:032x}", f"{whole.parent.span_id:016x}") == (TRACE, PARENT)
    said = attributes(whole)
    prompt = cold.usage.prompt_tokens
    assert said == {
        "http.request.method": "POST",
        "http.response.status_code": 200,
        "http.route": "/v1/completions",
        "url.path": "/v1/completions",
        "holdover.request_id": "mine-7",
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "holdover",
        "gen_ai.request.model": NAME,
        "gen_ai.response.model": NAME,
        "gen_ai.usage.input_tokens": prompt,
        "gen_ai.usage.cache_read.input_tokens": 0,
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.response.finish_reasons": ("length",),
    }
    (queue,), (prefill,), (decode,) = found["queue"], found["prefill"], found["decode"]
    for part in (queue, prefill, decode):
        assert part.parent is not None
        assert part.parent.span_id == whole.context.span_id
    assert queue.end_time == prefill.start_time
    assert prefill.end_time == decode.start_time
    assert whole.start_time <= queue.start_time
    assert decode.end_time <= whole.end_time
    assert attributes(prefill)["holdover.cache.state_depth"] == 0
    assert attributes(prefill)["holdover.cache.reason"].startswith("miss")
    assert attributes(decode)["gen_ai.usage.output_tokens"] == 5


def test_a_hit_says_how_deep(traced: Traced) -> None:
    traced.server.complete(PROMPT, max_tokens=1)
    traced.spans()
    chunks = list(traced.server.complete(PROMPT, max_tokens=5, stream=True))
    depth = chunks[-1].model_extra["holdover"]["cache"]["state_depth"]
    found = traced.spans()
    (prefill,), (whole,) = found["prefill"], found["POST /v1/completions"]
    assert depth > 0
    assert attributes(prefill)["holdover.cache.state_depth"] == depth
    assert attributes(prefill)["holdover.cache.lineage"] == "exact"
    assert attributes(whole)["gen_ai.usage.cache_read.input_tokens"] == depth
    # a stream's span lasts as long as the stream
    assert found["decode"][0].end_time <= whole.end_time


def test_choices_count_their_prompt_once(traced: Traced) -> None:
    traced.spans()
    answer = traced.server.complete([PROMPT, "the dog"], n=2, max_tokens=3)
    found = traced.spans()
    assert sorted(attributes(span)["holdover.choice"] for span in found["decode"]) == [0, 1, 2, 3]
    said = attributes(found["POST /v1/completions"][0])
    assert said["gen_ai.usage.input_tokens"] == answer.usage.prompt_tokens
    assert said["gen_ai.usage.output_tokens"] == answer.usage.completion_tokens
    assert len(said["gen_ai.response.finish_reasons"]) == 4


def test_failures_and_refusals(traced: Traced) -> None:
    traced.spans()
    with failing(traced.server, RuntimeError("broken")):
        assert traced.server.http.post("/v1/completions", json={"model": NAME, "prompt": "the cat"}).status_code == 500
    assert traced.server.http.post("/v1/completions", json={}).status_code == 400
    failed, refused = traced.spans()["POST /v1/completions"]
    assert (failed.status.status_code, attributes(failed)["error.type"]) == (StatusCode.ERROR, "RuntimeError")
    assert (refused.status.status_code, attributes(refused)["http.response.status_code"]) == (StatusCode.UNSET, 400)


def test_names_have_routes_and_probes_have_no_spans(traced: Traced) -> None:
    traced.spans()
    traced.server.http.delete(f"/v1/cache/pins/{'0' * 16}")
    traced.server.http.get("/health")
    traced.server.http.get("/metrics")
    assert list(traced.spans()) == ["DELETE /v1/cache/pins/{pin_id}"]


def test_nothing_is_imported_when_off() -> None:
    # FastAPI has the library's bare interface imported where it is installed
    code = "import sys, holdover.cli.serve, holdover.server.app; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "holdover.server.app" in loaded
    assert not {"holdover.server.tracing", "opentelemetry.sdk.trace", "opentelemetry.exporter"} & loaded


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "holdover.server.tracing", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    result = invoke("serve", "--otel", "--port", "0")
    assert result.exit_code == 2
    assert 'pip install "holdover[otel]"' in result.stderr


def test_the_environment_names_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    def name() -> Any:
        tracing = Tracing.from_environment()
        tracing.close()
        return tracing._provider.resource.attributes["service.name"]

    monkeypatch.delenv("OTEL_SERVICE_NAME", raising=False)
    assert name() == "holdover"
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    assert name() == "mine"
