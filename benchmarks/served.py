"""An engine behind a port of this process: for a benchmark's clients, or to look at its cache while it runs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.arms import Answered, Answering, forced_answer
from holdover import AsyncEngine, Engine
from holdover.cli.port import behind_port
from holdover.evaluation.traces.exchanges import Exchange


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
def served(engine: Engine, model: str, port: int) -> Iterator[Answering]:
    """The replay's cached arm behind a port, so that its cache can be looked at and steered while it runs.

    Raises:
        ConfigError: the port cannot be had.
    """
    with behind_port(engine, model, port) as (shared, _), asyncio.Runner() as runner:
        yield ServedArm(shared, runner)
