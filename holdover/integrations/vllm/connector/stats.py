"""The tier's counters in vLLM's logs and metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats


class TierStats(KVConnectorStats):  # type: ignore[misc]
    """Counts by event since the last report."""

    def reset(self) -> None:
        """Forget all counts."""
        self.data.clear()

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        """Add another report's counts."""
        for event, count in other.data.items():
            self.data[event] = self.data.get(event, 0) + count
        return self

    def reduce(self) -> dict[str, int | float]:
        """The counts, as vLLM logs them."""
        return dict(sorted(self.data.items()))

    def is_empty(self) -> bool:
        """Whether nothing happened."""
        return not any(self.data.values())


class TierMetrics(KVConnectorPromMetrics):  # type: ignore[misc]
    """One Prometheus counter, ``vllm:holdover_events``, with the event as a label."""

    def __init__(self, vllm_config: Any, metric_types: Any, labelnames: list[str], per_engine: Any) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine)
        self._events = self._counter_cls(
            name="vllm:holdover_events",
            documentation="What became of lookups, saves and loads of Holdover's checkpoint tier.",
            labelnames=[*labelnames, "event"],
        )

    def observe(self, transfer_stats_data: Mapping[str, int], engine_idx: int = 0) -> None:
        """Add a report's counts."""
        for event, count in transfer_stats_data.items():
            self._events.labels(*self.per_engine_labelvalues[engine_idx], event).inc(count)
