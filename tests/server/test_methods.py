"""HEAD is GET without a body, OPTIONS lists what a path answers to, and everything else is refused with that list."""

import pytest

from tests.server.live import NAME, Live
from tests.server.test_errors import error_of

READ = ["/", "/health", "/metrics", "/openapi.json", "/v1/models", f"/v1/models/{NAME}", "/v1/status", "/v1/cache/pins"]


@pytest.mark.parametrize("path", READ)
def test_head(server: Live, path: str) -> None:
    wanted, found = server.http.get(path), server.http.head(path)
    assert (found.status_code, found.content) == (200, b"")
    assert found.headers["content-type"] == wanted.headers["content-type"]
    if path not in ("/metrics", "/v1/status"):
        assert found.headers["content-length"] == wanted.headers["content-length"]
    # the connection is whole: the next answer is the next answer
    assert server.http.get("/health").json() == {"status": "ok"}


def test_head_of_what_is_not_there(server: Live) -> None:
    assert (server.http.head("/v1/nothing").status_code, server.http.head("/v1/models/other").status_code) == (404, 404)
    refused = server.http.head("/v1/completions")
    assert (refused.status_code, refused.content, refused.headers["allow"]) == (405, b"", "OPTIONS, POST")


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        ("/", "GET, HEAD, OPTIONS"),
        ("/health", "GET, HEAD, OPTIONS"),
        ("/openapi.json", "GET, HEAD, OPTIONS"),
        ("/v1/models/any/name", "GET, HEAD, OPTIONS"),
        ("/v1/chat/completions", "OPTIONS, POST"),
        ("/v1/cache/pins", "DELETE, GET, HEAD, OPTIONS, POST"),
    ],
)
def test_options(server: Live, path: str, methods: str) -> None:
    found = server.http.options(path)
    assert (found.status_code, found.content, found.headers["allow"]) == (204, b"", methods)
    refused = server.http.patch(path)
    assert (refused.status_code, refused.headers["allow"]) == (405, methods)
    assert error_of(refused)["code"] == "method_not_supported"
    assert server.http.options("/v1/nothing").status_code == 404


def test_options_takes_no_place(server: Live) -> None:
    server.gate.drain(60)
    try:
        assert server.http.options("/v1/completions").status_code == 204
    finally:
        server.gate._deadline = None
