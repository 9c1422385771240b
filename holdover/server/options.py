"""How the server treats its clients."""

from __future__ import annotations

from dataclasses import dataclass, field

from holdover.errors import ConfigError
from holdover.server.auth import Keys
from holdover.server.wire import MAX_BODY

MAX_WAITING = 512


@dataclass(frozen=True)
class ServerOptions:
    """Who may ask, and how much.

    Attributes:
        keys: who may ask; anybody where there are none.
        guard_metrics: whether ``/metrics`` needs a key too.
        max_waiting: requests that may wait beside those that run.
        max_per_key: requests that one key may have under way; None for any number.
        max_body: bytes of a request's body.
    """

    keys: Keys = field(default_factory=Keys)
    guard_metrics: bool = False
    max_waiting: int = MAX_WAITING
    max_per_key: int | None = None
    max_body: int = MAX_BODY

    def __post_init__(self) -> None:
        if self.max_waiting < 0 or self.max_body < 1 or (self.max_per_key is not None and self.max_per_key < 1):
            raise ConfigError(
                f"max_waiting must be at least 0, max_body and max_per_key at least 1; got {self.max_waiting}, "
                f"{self.max_body} and {self.max_per_key}"
            )
        if not self.keys and (self.guard_metrics or self.max_per_key is not None):
            raise ConfigError("guard_metrics and max_per_key are about API keys, and there are none: give one")

    @property
    def public(self) -> frozenset[str]:
        """Paths that need no key: what probes ask, who have none, and what tells nothing of any request."""
        return frozenset({"/", "/health", "/openapi.json"}) | (frozenset() if self.guard_metrics else {"/metrics"})
