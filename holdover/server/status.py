"""What the server's page shows: one cheap look at the engine, shared by all who watch."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from importlib.resources import files

from fastapi import FastAPI, Response

from holdover.engine.async_engine import AsyncEngine
from holdover.engine.core import EngineCore
from holdover.engine.request import Output
from holdover.prefix.listing import CacheEntry, entries
from holdover.server.cache import entry_body, place
from holdover.server.gate import Gate
from holdover.server.listings import ServerStatus
from holdover.server.metrics import Metrics
from holdover.server.openapi import operation
from holdover.server.pools import Snapshot
from holdover.server.wire import Json, json_response

# entries that a page shows, the shallowest ones
MAX_SHOWN = 300
# watchers ask once a second: however many they are, the engine is asked no more often than this
_FRESH = 0.9
# what the page may do, should anything in it ever go wrong: talk to this server
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"


@dataclass(frozen=True)
class Look:
    """An engine as it stood between two steps.

    Attributes:
        snapshot: its counters and pools.
        entries: the shallowest checkpoints.
        total: checkpoints in memory.
    """

    snapshot: Snapshot
    entries: list[CacheEntry]
    total: int

    @classmethod
    def at(cls, core: EngineCore) -> Look:
        """Look at an engine, on its own thread. Mutates nothing."""
        return cls(Snapshot.of(core), entries(core.cache, MAX_SHOWN), len(core.cache.tiers.order))


class Watch:
    """The last look at an engine.

    Args:
        engine: the engine.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._turn = asyncio.Lock()
        self._taken = float("-inf")
        self._last: Look | None = None

    async def look(self) -> Look:
        """At most `_FRESH` seconds old."""
        async with self._turn:
            if self._last is None or time.monotonic() - self._taken > _FRESH:
                self._last = await self._engine.call(Look.at)
                self._taken = time.monotonic()
            return self._last


def add_page(app: FastAPI, engine: AsyncEngine, model_name: str, gate: Gate, metrics: Metrics) -> None:
    """Add the page and what it asks for."""
    watch = Watch(engine)
    page = files("holdover.server").joinpath("page.html").read_bytes()

    @app.get("/", **operation("Show the cache to people", media="text/html"))
    async def show() -> Response:
        headers = {"content-security-policy": _POLICY, "x-frame-options": "DENY", "cache-control": "no-cache"}
        return Response(page, headers=headers, media_type="text/html; charset=utf-8")

    @app.get("/v1/status", **operation("Say what the page shows", ServerStatus))
    async def status() -> Response:
        look = await watch.look()
        snapshot = look.snapshot
        body: Json = {
            "object": "status",
            "model": model_name,
            "status": "draining" if gate.is_draining else "ok",
            "running": snapshot.running,
            "waiting": snapshot.waiting,
            "pools": _pools(snapshot),
            "entries": [entry_body(entry) for entry in sorted(look.entries, key=place)],
            "total": look.total,
            "recent": [_request(output) for output in reversed(metrics.recent)],
        }
        return json_response(body)


def _pools(now: Snapshot) -> list[Json]:
    sizes = {"native": now.pool_bytes["state"], "compressed": now.pool_bytes.get("compressed", 0)}
    balances = [(f"{tier} state slots", balance, sizes[tier]) for tier, balance in now.slots.items()]
    balances.append(("KV rows", now.rows, now.pool_bytes["kv"]))
    return [
        {
            "name": name,
            "free": balance.free,
            "cached": balance.cached,
            "locked": balance.locked,
            "total": balance.total,
            "bytes": size,
        }
        for name, balance, size in balances
    ]


def _request(output: Output) -> Json:
    cache, first = output.cache, output.timing.first_token
    return {
        "prompt_tokens": cache.prompt_tokens,
        "state_depth": cache.state_depth,
        "kv_depth": cache.kv_depth,
        "reason": cache.reason,
        "tokens": len(output.token_ids),
        "finish_reason": output.finish_reason,
        "first_token_ms": None if first is None else round(first * 1e3, 3),
    }
