"""A client of a running server, for commands that ask one."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any

from holdover.errors import ConfigError

# a prefix that is pinned may have to be computed first
_PATIENCE = 600
_PAGE = 500


class Client:
    """Sends JSON and reads JSON.

    Args:
        url: the server's root.
        key: an API key; of several with spaces between, as the server may have them, the first is sent.

    Raises:
        ConfigError: the address is no HTTP address.
    """

    def __init__(self, url: str, key: str | None = None) -> None:
        if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
            raise ConfigError(f"{url!r} is no address of a server: write one such as http://127.0.0.1:8000")
        self._url = url.rstrip("/")
        keys = (key or "").split()
        self._headers = {"Content-Type": "application/json"}
        if keys:
            self._headers["Authorization"] = f"Bearer {keys[0]}"

    def request(self, method: str, path: str, body: Any = None) -> Any:
        """The server's answer.

        Raises:
            ConfigError: the server cannot be reached, or refuses; the message is its own.
        """
        data = None if body is None else json.dumps(body).encode()
        asked = urllib.request.Request(self._url + path, data, self._headers, method=method)
        try:
            with urllib.request.urlopen(asked, timeout=_PATIENCE) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            raise ConfigError(f"the server at {self._url} refused: {_reason(error)}") from None
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise ConfigError(f"no answer from {self._url} ({reason}): is the server running? See --url") from None

    def pages(self, path: str) -> Iterator[dict[str, Any]]:
        """All entries of a list that the server gives in pages.

        Raises:
            ConfigError: as `request`.
        """
        page = self.request("GET", f"{path}?limit={_PAGE}")
        yield from page["data"]
        while page["next"] is not None:
            page = self.request("GET", f"{path}?limit={_PAGE}&after={page['next']}")
            yield from page["data"]


def _reason(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(error)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"{error.code} {error.reason}"
