"""API keys: who may ask, and what the log calls them."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable
from pathlib import Path

from holdover.errors import ConfigError
from holdover.server.asgi import App, Receive, Scope, Send, header
from holdover.server.errors import ApiError

_KEY = re.compile(r"[\x21-\x7e]+")


class Keys:
    """Keys that open the server, kept as digests only.

    Args:
        keys: the keys; one that is given twice counts once.

    Raises:
        ConfigError: one is empty or could not be sent in a header. The message does not quote it.
    """

    def __init__(self, keys: Iterable[str] = ()) -> None:
        distinct = list(dict.fromkeys(keys))
        for number, key in enumerate(distinct, start=1):
            if not _KEY.fullmatch(key):
                raise ConfigError(f"API key {number} is empty, or has characters other than visible ASCII ones")
        self._digests = [_digest(key.encode()) for key in distinct]

    def __len__(self) -> int:
        return len(self._digests)

    def owner(self, key: bytes) -> str | None:
        """What a key's owner is called in logs and limits, or None if it is no key of this server."""
        given = _digest(key)
        # all of them, each in constant time: how long it takes says nothing about any
        matches = [hmac.compare_digest(given, digest) for digest in self._digests]
        return f"key-{matches.index(True) + 1}" if any(matches) else None


def read_keys(path: Path) -> list[str]:
    """Keys in a file, one a line; empty lines and those that start with ``#`` are left out.

    Raises:
        ConfigError: it cannot be read, or holds none.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the file of API keys {path} cannot be read: {getattr(error, 'strerror', error)}") from None
    keys = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    if not keys:
        raise ConfigError(f"the file of API keys {path} holds none: write one a line")
    return keys


class Authentication:
    """Lets nobody without a key past, but to some paths.

    Args:
        app: the application below.
        keys: who may pass.
        public: paths that need no key.
    """

    def __init__(self, app: App, keys: Keys, public: frozenset[str]) -> None:
        self._app = app
        self._keys = keys
        self._public = public

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application for those who have a key.

        Raises:
            ApiError: the client has none.
        """
        if scope["type"] == "http" and scope["path"] not in self._public:
            scope["state"]["client"] = self._client(scope)
        await self._app(scope, receive, send)

    def _client(self, scope: Scope) -> str:
        scheme, _, key = header(scope, b"authorization").partition(b" ")
        if scheme.lower() != b"bearer" or not key.strip():
            raise _refused("no API key was sent: send one as 'Authorization: Bearer KEY'")
        client = self._keys.owner(key.strip())
        if client is None:
            raise _refused("the API key that was sent is none of this server's")
        return client


def _refused(message: str) -> ApiError:
    return ApiError(401, message, code="invalid_api_key", headers={"www-authenticate": "Bearer"})


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
