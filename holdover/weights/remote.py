"""A model on the hub or in a directory behind HTTP, read by ranges: of its weights, only what is asked for moves.

Opening it costs the configuration, the index and the first `HEAD_BYTES` of every safetensors file, which say its size
and hold its header or the beginning of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from holdover.errors import WeightsError
from holdover.weights.files import CONFIG_NAME, INDEX_NAME, SINGLE_NAME, ModelFiles, parse_config, parse_index
from holdover.weights.http import fetch_file, fetch_optional, fetch_range

# holds the whole header of most files; the rest of a longer one is a second request
HEAD_BYTES = 64 << 10


@dataclass(frozen=True)
class RemoteFile:
    """One safetensors file behind HTTP.

    Attributes:
        url: its address.
        size: its bytes.
        head: its first bytes, kept from opening it.
        headers: sent with every request.
    """

    url: str
    size: int
    head: bytes = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)

    @classmethod
    def open(cls, url: str, headers: Mapping[str, str]) -> RemoteFile:
        """Ask for its size and first bytes. Raises WeightsError where they cannot be had."""
        head, size = fetch_range(url, 0, HEAD_BYTES, headers)
        return cls(url, size, head, headers)

    def __str__(self) -> str:
        return self.url

    @property
    def name(self) -> str:
        """Its file name."""
        return self.url.rpartition("/")[2]

    def read(self, start: int, length: int) -> bytes:
        """Exactly ``length`` bytes from ``start``. Raises WeightsError where they cannot be had or it ends before."""
        end = start + length
        if end > self.size:
            raise WeightsError(f"{self} ends {end - self.size} bytes before byte {end}: truncated")
        known = self.head[start:end]
        if len(known) == length:
            return known
        start += len(known)
        data, size = fetch_range(self.url, start, end - start, self.headers)
        if size != self.size:
            raise WeightsError(f"{self} had {self.size} bytes and now has {size}: it changes while it is read")
        return known + data


def is_url(model: str) -> bool:
    """Whether ``model`` is the address of a directory behind HTTP."""
    return model.startswith(("http://", "https://"))


def open_url(url: str, *, headers: Mapping[str, str] | None = None, revision: str = "remote") -> ModelFiles:
    """The files in the directory at ``url``.

    Args:
        url: an ``http`` or ``https`` address without a query, below which the files have their names.
        headers: sent with every request, for example a token.
        revision: what the result's revision is.

    Raises:
        ConfigError: ``config.json`` is not a JSON object.
        WeightsError: there is no configuration or no safetensors weights, access is refused, or the server does not
            serve ranges.
    """
    base, sent = url.rstrip("/"), dict(headers or {})
    config = load_url_config(base, headers=sent)
    index = f"{base}/{INDEX_NAME}"
    data = fetch_optional(index, sent)
    weight_map = None if data is None else parse_index(data, index)
    names = [SINGLE_NAME] if weight_map is None else sorted(set(weight_map.values()))
    weights = tuple(RemoteFile.open(f"{base}/{quote(name)}", sent) for name in names)
    return ModelFiles(base, config, weights, weight_map, revision)


def load_url_config(url: str, *, headers: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The configuration in the directory at ``url``. Raises ConfigError or WeightsError."""
    address = f"{url.rstrip('/')}/{CONFIG_NAME}"
    return parse_config(fetch_file(address, headers or {}), address)
