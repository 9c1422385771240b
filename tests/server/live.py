"""A server on a free port of this machine, in a thread, and what tests ask of its engine."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import httpx
import torch
import uvicorn
from openai import OpenAI

from holdover import AsyncEngine
from holdover.cli.serve import listen
from holdover.engine.core import EngineCore
from holdover.server.app import create_app, gate_of
from holdover.server.gate import Gate
from holdover.server.options import ServerOptions

if TYPE_CHECKING:
    from holdover.server.tracing import Tracing

T = TypeVar("T")
NAME = "tiny-gdn"
# waited only by a test that would otherwise hang
PATIENCE = 60.0


class Live:
    """A running server.

    Attributes:
        url: its root.
        engine: its engine.
        gate: what its requests pass.
        http: a plain client.
        openai: the official client; it does not try again by itself.
    """

    def __init__(self, url: str, engine: AsyncEngine, gate: Gate, key: str | None = None) -> None:
        self.url = url
        self.engine = engine
        self.gate = gate
        headers = {"authorization": f"Bearer {key}"} if key else {}
        self.http = httpx.Client(base_url=url, timeout=PATIENCE, headers=headers)
        self.openai = OpenAI(base_url=f"{url}/v1", api_key=key or "unused", timeout=PATIENCE, max_retries=0)

    def on_engine(self, function: Callable[[EngineCore], T]) -> T:
        """Run ``function`` on the engine's thread."""
        return asyncio.run(self.engine.call(function))

    def settle(self) -> None:
        """Return when the engine has nothing left to do. Every question waits for the step in progress."""
        while self.on_engine(lambda core: core.has_work):
            pass

    def check(self) -> None:
        """Fail unless the engine is idle and every pool balances, with nothing live."""
        self.settle()
        self.on_engine(lambda core: core.check_integrity())
        slots, rows = self.on_engine(lambda core: (core.cache.tiers.balance("native"), core.cache.rows.balance()))
        assert slots.locked == 0, slots
        assert rows.locked == 0, rows

    def flush(self) -> None:
        """Empty the cache."""
        self.on_engine(lambda core: core.cache.flush())

    def chat(self, text: str | list[dict[str, Any]], **options: Any) -> Any:
        """Ask one question, or go on with a conversation, greedily."""
        messages: Any = [{"role": "user", "content": text}] if isinstance(text, str) else text
        options = {"max_tokens": 12, "temperature": 0, **options}
        return self.openai.chat.completions.create(model=NAME, messages=messages, **options)

    def complete(self, prompt: Any, **options: Any) -> Any:
        """Continue a prompt greedily."""
        options = {"max_tokens": 12, "temperature": 0, **options}
        return self.openai.completions.create(model=NAME, prompt=prompt, **options)


@contextmanager
def running(
    model: Path,
    treatment: ServerOptions | None = None,
    *,
    key: str | None = None,
    tracing: Tracing | None = None,
    **options: Any,
) -> Iterator[Live]:
    """A server of ``model`` with pools small enough to be filled; its clients send ``key``."""
    torch.set_num_threads(1)
    sizes = {"state_budget": 2**18, "kv_budget": 4 * 2**20, "chunk_size": 64, "poison": True}
    engine = AsyncEngine.from_pretrained(str(model), **(sizes | options))
    gate = gate_of(engine, treatment or ServerOptions())
    with listen("127.0.0.1", 0) as listener:
        app = create_app(engine, model_name=NAME, options=treatment, gate=gate, tracing=tracing)
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=1))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="server")
        thread.start()
        live = Live(f"http://127.0.0.1:{listener.getsockname()[1]}", engine, gate, key)
        try:
            # the socket listens already: this waits until somebody answers
            live.http.get("/health").raise_for_status()
            yield live
        finally:
            live.http.close()
            live.openai.close()
            server.should_exit = True
            thread.join()
