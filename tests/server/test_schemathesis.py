"""The API is as it describes itself: whatever is sent, every answer is one of those described, and none is a 5xx."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, given, settings
from schemathesis.specs.openapi.checks import positive_data_acceptance

from holdover import AsyncEngine
from holdover.server.app import create_app
from holdover.server.asgi import Receive, Scope, Send
from tests.server.live import NAME

# their bodies have rules that a schema cannot say: token ids below the vocabulary's end, budgets, templates
RULED = {"/v1/chat/completions", "/v1/completions", "/v1/cache/pins", "/v1/chunks"}


@pytest.fixture(scope="module")
def app(model: Path) -> Iterator[FastAPI]:
    engine = AsyncEngine.from_pretrained(str(model), state_budget=2**18, kv_budget=2**20, max_context=48)
    yield create_app(engine, model_name=NAME)
    engine.close()


@pytest.fixture(scope="module")
def description(app: FastAPI) -> Any:
    async def without_lifespan(scope: Scope, receive: Receive, send: Send) -> None:
        # the client that sends one request would close the engine after it
        if scope["type"] == "http":
            await app(scope, receive, send)
        else:
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await send({"type": "lifespan.shutdown.complete"})

    return schemathesis.openapi.from_asgi("/openapi.json", without_lifespan)


def drive(operation: Any, mode: schemathesis.GenerationMode) -> None:
    """Send requests to one operation, and compare answers with what the description says of them."""
    skipped = [positive_data_acceptance] if operation.path in RULED else []

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(max_examples=20, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    def run(case: schemathesis.Case) -> None:
        case.call_and_validate(excluded_checks=skipped)

    run()


@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode), ids=lambda mode: mode.value)
def test_answers_are_those_described(description: Any, mode: schemathesis.GenerationMode) -> None:
    operations = [one.ok() for one in description.get_all_operations()]
    assert {one.path for one in operations} >= RULED
    for operation in operations:
        if mode is schemathesis.GenerationMode.POSITIVE or operation.body or operation.query:
            drive(operation, mode)
