"""A client that goes away takes its request with it."""

import json
import socket
from typing import Any

import pytest

from tests.server.live import NAME, Live

LONG: dict[str, Any] = {"model": NAME, "prompt": "the cat", "max_tokens": 900, "temperature": 0, "ignore_eos": True}


def connect(server: Live, body: dict[str, Any], path: str = "/v1/completions") -> socket.socket:
    """Send a request by hand, so that the connection can be dropped at will."""
    host, port = server.url.removeprefix("http://").split(":")
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(content)}\r\n\r\n"
    connection = socket.create_connection((host, int(port)))
    connection.sendall(head.encode() + content)
    return connection


def wait_until_running(server: Live) -> None:
    while not server.on_engine(lambda core: core.num_running):
        pass


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("orderly", [False, True])
def test_disconnect_aborts(server: Live, stream: bool, orderly: bool) -> None:
    aborted = server.on_engine(lambda core: core.stats.aborted)
    with connect(server, LONG | {"stream": stream}) as connection:
        wait_until_running(server)
        if stream:
            assert connection.recv(1)
        if not orderly:
            # closing then resets the connection instead of ending it
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    server.settle()
    assert server.on_engine(lambda core: core.stats.aborted) == aborted + 1
    # what was computed up to then is a prefix like any other
    answer = server.http.post("/v1/completions", json=LONG | {"prompt": "the cat", "max_tokens": 1}).json()
    assert answer["choices"]


def test_client_that_leaves_in_the_body_starts_nothing(server: Live) -> None:
    started = server.on_engine(lambda core: core.stats.prompt_tokens)
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(b'POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"model"')
    assert server.http.get("/health").status_code == 200
    assert server.on_engine(lambda core: core.stats.prompt_tokens) == started


def test_openai_client_that_breaks_off(server: Live) -> None:
    aborted = server.on_engine(lambda core: core.stats.aborted)
    with server.chat("hello", max_tokens=900, stream=True, extra_body={"ignore_eos": True}) as stream:
        for number, _ in enumerate(stream):
            if number == 3:
                break
    server.settle()
    assert server.on_engine(lambda core: core.stats.aborted) == aborted + 1
