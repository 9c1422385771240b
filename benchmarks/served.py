"""An engine behind a port of this process: for a benchmark's clients, or to look at its cache while it runs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from benchmarks.arms import Answered, Answering, forced_answer
from holdover import AsyncEngine, Engine
from holdover.cli.serve import listen
from holdover.evaluation.traces.exchanges import Exchange
from holdover.server.app import create_app


class ServedArm:
    """An engine that a server has too.

    Args:
        engine: the engine.
        runner: what its answers are waited for in.
    """

    def __init__(self, engine: AsyncEngine, runner: asyncio.Runner) -> None:
        self._engine = engine
        self._runner = runner

    def answer(self, exchange: Exchange, conversation: str) -> Answered:
        return forced_answer(self._complete, exchange, conversation, use_cache=True)

    def _complete(self, *args: Any, **request: Any) -> Any:
        return self._runner.run(self._engine.generate(*args, **request))


@contextmanager
def behind_port(engine: Engine, model: str, port: int = 0) -> Iterator[tuple[AsyncEngine, str]]:
    """Serve ``engine`` as `holdover serve` does until the block ends, which closes it; yields it and its address.

    Raises:
        ConfigError: the port cannot be had.
    """
    with listen("127.0.0.1", port) as listener:
        shared = AsyncEngine(engine)
        app = create_app(shared, model_name=model)
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=1))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="server")
        thread.start()
        try:
            yield shared, f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


@contextmanager
def served(engine: Engine, model: str, port: int) -> Iterator[Answering]:
    """The replay's cached arm behind a port, so that its cache can be looked at and steered while it runs.

    Raises:
        ConfigError: the port cannot be had.
    """
    with behind_port(engine, model, port) as (shared, _), asyncio.Runner() as runner:
        yield ServedArm(shared, runner)
