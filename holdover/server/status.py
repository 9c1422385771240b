"""What the server's page shows: one cheap look at the engine, shared by all who watch."""

from __future__ import annotations

import asyncio
import time
from importlib.resources import files

from fastapi import FastAPI, Response

from holdover.engine.async_engine import AsyncEngine
from holdover.engine.core import EngineCore
from holdover.engine.request import Output
from holdover.prefix.listing import CacheEntry, entries
from holdover.server.cache import entry_body, place
from holdover.server.gate import Gate
from holdover.server.metrics import Metrics
from holdover.server.pools import Snapshot
from holdover.server.wire import Json, json_response

# entries that a page shows, the shallowest ones
MAX_SHOWN = 300
# watchers ask once a second: however many they are, the engine is asked no more often than this
_FRESH = 0.5
# what the page may do, should anything in it ever go wrong: talk to this server
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"


class Watch:
    """The last look at an engine.

    Args:
        engine: the engine.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._turn = asyncio.Lock()
        self._taken = float("-inf")
        self._last: tuple[Snapshot, list[CacheEntry]] | None = None

    async def look(self) -> tuple[Snapshot, list[CacheEntry]]:
        """Pools, and entries in the order of the list; at most half a second old."""
        async with self._turn:
            if self._last is None or time.monotonic() - self._taken > _FRESH:
                snapshot, found = await self._engine.call(_read)
                self._last = snapshot, sorted(found, key=place)
                self._taken = time.monotonic()
            return self._last


def add_page(app: FastAPI, engine: AsyncEngine, model_name: str, gate: Gate, metrics: Metrics) -> None:
    """Add the page and what it asks for."""
    watch = Watch(engine)
    page = files("holdover.server").joinpath("page.html").read_bytes()

    @app.get("/")
    async def show() -> Response:
        headers = {"content-security-policy": _POLICY, "x-frame-options": "DENY", "cache-control": "no-cache"}
        return Response(page, headers=headers, media_type="text/html; charset=utf-8")

    @app.get("/v1/status")
    async def status() -> Response:
        snapshot, found = await watch.look()
        body: Json = {
            "object": "status",
            "model": model_name,
            "status": "draining" if gate.is_draining else "ok",
            "running": snapshot.running,
            "waiting": snapshot.waiting,
            "pools": _pools(snapshot),
            "entries": [entry_body(entry) for entry in found[:MAX_SHOWN]],
            "total": len(found),
            "recent": [_request(output) for output in reversed(metrics.recent)],
        }
        return json_response(body)


def _read(core: EngineCore) -> tuple[Snapshot, list[CacheEntry]]:
    return Snapshot.of(core), entries(core.cache)


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
