"""A small HTTP server of one folder that understands ranges, counts what it sends, and can be told to misbehave."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Served:
    """What a test sets and sees.

    Attributes:
        url: address of the folder.
        sent: bytes of bodies sent.
        requests: (method, path, range, authorization) of every request.
        ignore_ranges: answer every request with the whole file.
        shift: add this to the first byte in ``Content-Range``.
        cut: leave out as many last bytes of every range's body.
        honest: promise no more bytes than are sent.
        statuses: answer the next requests for safetensors files with these instead.
        secret: refuse requests without this token.
    """

    url: str
    sent: int = 0
    requests: list[tuple[str, str, str | None, str | None]] = field(default_factory=list)
    ignore_ranges: bool = False
    shift: int = 0
    cut: int = 0
    honest: bool = False
    statuses: list[int] = field(default_factory=list)
    secret: str | None = None


@contextmanager
def serve(folder: Path) -> Iterator[Served]:
    """Serve ``folder`` on a free port. A hub's ``/{owner}/{name}/resolve/{revision}/`` leads into it too."""
    server = _Server(("127.0.0.1", 0), _Handler)
    served = Served(f"http://127.0.0.1:{server.server_port}")
    server.folder, server.served = folder, served
    # a short poll, so that the shutdown does not wait
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    folder: Path
    served: Served

    def handle_error(self, request: object, address: object) -> None:
        # a client that has seen enough hangs up
        pass


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # headers and body are two writes; the second would wait for the first's acknowledgement
    disable_nagle_algorithm = True
    server: _Server

    def log_message(self, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        served = self.server.served
        wanted = self.headers.get("Range")
        served.requests.append((self.command, self.path, wanted, self.headers.get("Authorization")))
        path = self.server.folder / self.path.rpartition("/")[2]
        if served.secret is not None and self.headers.get("Authorization") != f"Bearer {served.secret}":
            return self._empty(401)
        if path.suffix == ".safetensors" and served.statuses:
            return self._empty(served.statuses.pop(0))
        if not path.is_file():
            return self._empty(404)
        data = path.read_bytes()
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", wanted or "")
        if match is None or served.ignore_ranges:
            return self._send(200, {}, data, body)
        first, last = int(match[1]), min(int(match[2]), len(data) - 1)
        if first >= len(data):
            return self._empty(416)
        header = {"Content-Range": f"bytes {first + served.shift}-{last}/{len(data)}"}
        return self._send(206, header, data[first : last + 1], body)

    def _empty(self, status: int) -> None:
        self._send(status, {}, b"", False)

    def _send(self, status: int, headers: dict[str, str], data: bytes, body: bool) -> None:
        served = self.server.served
        kept = data[: len(data) - served.cut] if status == 206 else data
        length = len(kept if served.honest else data)
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(length), "X-Repo-Commit": COMMIT}.items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            served.sent += len(kept)
            self.wfile.write(kept)
            # a body shorter than promised ends with the connection
            self.close_connection = len(kept) < length
