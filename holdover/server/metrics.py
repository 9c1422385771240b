"""Prometheus metrics of one server, in a registry of its own."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from holdover.engine.async_engine import AsyncEngine
from holdover.engine.request import Output
from holdover.errors import HoldoverError
from holdover.server.pools import PoolCollector, Snapshot

Outcome = Literal["stop", "length", "abort", "error", "rejected"]
_OUTCOMES: tuple[Outcome, ...] = ("stop", "length", "abort", "error", "rejected")

# from a token of a tiny model to minutes of a long prompt
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_RECENT = 20
_TOKENS = tuple(2**exponent for exponent in range(4, 21))


class Metrics:
    """What the server counts itself, beside the engine's own counters."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        # the last requests that ended by themselves, oldest first
        self.recent: deque[Output] = deque(maxlen=_RECENT)
        self._pools = PoolCollector()
        self.registry.register(self._pools)
        self._first_token = self._seconds("time_to_first_token", "From submission to the first token.")
        self._per_token = self._seconds("time_per_output_token", "Mean over the tokens of a request after its first.")
        self._total = self._seconds("request", "From submission to the end of a request.")
        self._prompt = Histogram(
            "holdover_request_prompt_tokens", "Prompt tokens of a request.", buckets=_TOKENS, registry=self.registry
        )
        self._generated = Counter("holdover_generated_tokens", "Tokens generated.", registry=self.registry)
        self._requests = Counter(
            "holdover_requests", "Requests by how they ended.", ["outcome"], registry=self.registry
        )
        for outcome in _OUTCOMES:
            self._requests.labels(outcome)

    def count_tokens(self, count: int) -> None:
        """Tokens were generated."""
        self._generated.inc(count)

    def count_request(self, outcome: Outcome) -> None:
        """A request ended."""
        self._requests.labels(outcome).inc()

    def observe(self, output: Output) -> None:
        """A request ended by itself."""
        # what it said is nobody else's business
        self.recent.append(replace(output, text="", logprobs=None, prompt_logprobs=None))
        timing, tokens = output.timing, len(output.token_ids)
        self._total.observe(timing.total)
        self._prompt.observe(len(output.prompt_token_ids))
        if timing.first_token is not None:
            self._first_token.observe(timing.first_token)
            if tokens > 1:
                self._per_token.observe((timing.total - timing.first_token) / (tokens - 1))

    async def render(self, engine: AsyncEngine) -> bytes:
        """All metrics in Prometheus' text format; the engine's as they stand between two of its steps."""
        try:
            snapshot = await engine.call(Snapshot.of)
        except HoldoverError:
            snapshot = None
        # no await between these two: another scrape cannot come between
        self._pools.snapshot = snapshot
        return generate_latest(self.registry)

    def _seconds(self, name: str, what: str) -> Histogram:
        return Histogram(f"holdover_{name}_seconds", what, buckets=_SECONDS, registry=self.registry)
