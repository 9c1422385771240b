"""Lines of the log: one form each, and every line of a request names it."""

import json
import logging
from collections.abc import Iterator

import pytest

from holdover.engine.origin import ORIGIN, origin_of, remembered
from holdover.server.logs import JsonFormatter, TextFormatter
from tests.server.live import Live
from tests.server.test_failures import BODY, failing


def record(message: str, *arguments: object, **extra: object) -> logging.LogRecord:
    made = logging.LogRecord("holdover.x", logging.WARNING, "x.py", 1, message, arguments or None, None)
    vars(made).update(extra)
    return made


def test_text_is_one_line() -> None:
    line = TextFormatter().format(record("said %s", "a\nERROR forged\r"))
    assert line.endswith("WARNING holdover.x [-] said a\\nERROR forged\\r")


def test_json_is_one_object_a_line() -> None:
    line = JsonFormatter().format(record("said %s", 'a\n"b"', fields={"status": 200}))
    assert "\n" not in line
    body = json.loads(line)
    time = body.pop("time")
    assert body == {
        "level": "warning",
        "logger": "holdover.x",
        "request": None,
        "message": 'said a\n"b"',
        "status": 200,
    }
    assert time.endswith("+00:00")


def test_engine_lines_are_their_caller_s() -> None:
    token = ORIGIN.set("mine")
    try:
        with remembered("cmpl-1"):
            ORIGIN.reset(token)
            found = [origin_of(record("request %s failed", one)) for one in ("cmpl-1", "cmpl-2", 7)]
        assert found == ["mine", None, None]
        assert origin_of(record("request %s failed", "cmpl-1")) is None
    finally:
        assert ORIGIN.get() is None


@pytest.fixture
def lines() -> Iterator[list[logging.LogRecord]]:
    """What is logged, with the request as it was then."""
    found: list[logging.LogRecord] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            record.request = origin_of(record)
            found.append(record)

    root, handler = logging.getLogger(), Keep()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    yield found
    root.removeHandler(handler)
    root.setLevel(level)


def named(lines: list[logging.LogRecord], request: str) -> list[logging.LogRecord]:
    return [line for line in list(lines) if vars(line)["request"] == request]


def whole(lines: list[logging.LogRecord], request: str) -> list[logging.LogRecord]:
    """Lines of a request, up to its last one, which is written once the client has its answer."""
    while not any(line.name == "holdover.access" for line in named(lines, request)):
        pass
    return named(lines, request)


def test_every_request_has_a_line(server: Live, lines: list[logging.LogRecord]) -> None:
    sent = [("GET", "/v1/models", 200), ("GET", "/v1/no%0Athing", 404), ("POST", "/v1/completions", 400)]
    for number, (method, path, _) in enumerate(sent):
        server.http.request(method, path, headers={"x-request-id": f"mine-{number}"})
    server.http.get("/health", headers={"x-request-id": "quiet"})
    found = [vars(line)["fields"] for number in range(3) for line in whole(lines, f"mine-{number}")]
    assert [(one["method"], one["path"], one["status"]) for one in found] == sent
    assert all(one["ms"] >= 0 for one in found)
    assert not named(lines, "quiet")


def test_failures_name_their_request(server: Live, lines: list[logging.LogRecord]) -> None:
    # in the engine's thread while it is admitted, and where the answer is made
    cache = server.engine.engine.core.cache
    opened = cache.open
    cache.open = lambda *_, **__: 1 / 0  # type: ignore[assignment, method-assign, return-value]
    try:
        server.http.post("/v1/completions", json=BODY, headers={"x-request-id": "mine-7"})
    finally:
        cache.open = opened  # type: ignore[method-assign]
    found = {line.name for line in whole(lines, "mine-7")}
    assert found == {"holdover.engine.core", "holdover.server.errors", "holdover.access"}
    with failing(server, RuntimeError("broken"), after=4):
        server.http.post("/v1/completions", json=BODY | {"stream": True}, headers={"x-request-id": "mine-8"})
    assert {"holdover.server.errors", "holdover.access"} <= {line.name for line in whole(lines, "mine-8")}
