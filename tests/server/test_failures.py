"""When the engine fails: on one request, in mid-stream, and for good."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.server.live import NAME, Live, running

BODY = {"model": NAME, "prompt": "the cat", "max_tokens": 8, "temperature": 0, "ignore_eos": True}


@contextmanager
def failing(server: Live, error: BaseException, *, after: int = 0) -> Iterator[None]:
    """Make the model raise once, after some forwards."""
    runner = server.engine.engine.core.runner
    run, calls = runner.run, iter([None] * after)

    def fail(*args: Any, **options: Any) -> Any:
        if next(calls, error) is error:
            runner.run = run  # type: ignore[method-assign]
            raise error
        return run(*args, **options)

    runner.run = fail  # type: ignore[method-assign]
    try:
        yield
    finally:
        runner.run = run  # type: ignore[method-assign]


@pytest.mark.parametrize("stream", [False, True])
def test_one_request_fails(server: Live, stream: bool, caplog: pytest.LogCaptureFixture) -> None:
    with failing(server, RuntimeError("secret path")):
        response = server.http.post("/v1/completions", json=BODY | {"stream": stream})
    error = response.json()["error"]
    assert (response.status_code, error["type"], error["code"]) == (500, "server_error", "internal_error")
    # what went wrong is for the log; the id leads there
    assert "secret" not in error["message"]
    assert response.headers["x-request-id"] in error["message"]
    assert "secret path" in caplog.text
    assert server.complete("the cat").choices[0].text


def test_failure_in_mid_stream_is_an_event(server: Live) -> None:
    with failing(server, RuntimeError("broken"), after=4):
        response = server.http.post("/v1/completions", json=BODY | {"stream": True})
    assert response.status_code == 200
    events = response.text.split("\n\n")
    assert '"type":"server_error"' in events[-2]
    assert "[DONE]" not in response.text
    with failing(server, RuntimeError("broken"), after=4), pytest.raises(openai.APIError, match="internal error"):
        list(server.complete("the cat", stream=True))
    assert server.complete("the cat").choices[0].text


class Fatal(BaseException):
    """What no ``except Exception`` holds back."""


def test_dead_engine(model: Path) -> None:
    with running(model) as server:
        server.complete("the cat")
        with failing(server, Fatal("gone"), after=2):
            response = server.http.post("/v1/completions", json=BODY)
        assert (response.status_code, response.json()["error"]["type"]) == (500, "server_error")
        for path in ("/v1/completions", "/v1/chat/completions"):
            response = server.http.post(path, json=BODY)
            assert (response.status_code, response.json()["error"]["code"]) == (503, "engine_stopped")
        assert server.http.get("/health").status_code == 503
        metrics = server.http.get("/metrics")
        assert metrics.status_code == 200
        assert "holdover_engine_up 0.0" in metrics.text
        # the name of the model needs no engine
        assert server.http.get("/v1/models").status_code == 200


def test_shutdown_ends_streams(model: Path) -> None:
    with running(model) as server:
        stream = server.complete("the cat", max_tokens=900, stream=True, extra_body={"ignore_eos": True})
        next(iter(stream))
        core = server.engine.engine.core
    assert not server.engine.is_healthy
    # the engine's thread has ended: nobody else uses the pools now
    core.check_integrity()
    assert core.num_running == core.num_waiting == 0
    stream.close()
