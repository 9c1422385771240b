"""The engine's own counters and pools, read on its thread and shown to Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from holdover.engine.core import EngineCore
from holdover.engine.stats import EngineStats
from holdover.store import Balance


@dataclass(frozen=True)
class Snapshot:
    """One consistent reading of an engine.

    Attributes:
        stats: the engine's totals.
        cache: the prefix cache's totals by name.
        running: requests that own a slot.
        waiting: requests that own nothing yet.
        slots: where the state slots are.
        rows: where the KV rows are.
        state_bytes: bytes of the slot pool.
        kv_bytes: bytes of the KV pool.
    """

    stats: EngineStats
    cache: Mapping[str, int]
    running: int
    waiting: int
    slots: Balance
    rows: Balance
    state_bytes: int
    kv_bytes: int

    @classmethod
    def of(cls, core: EngineCore) -> Snapshot:
        """Read an engine, on its own thread. Mutates nothing."""
        return cls(
            stats=replace(core.stats),
            cache=dict(core.cache.counters),
            running=core.num_running,
            waiting=core.num_waiting,
            slots=core.cache.slot_balance(),
            rows=core.cache.row_balance(),
            state_bytes=core.cache.slots.pool.nbytes,
            kv_bytes=core.cache.kv.nbytes,
        )


class PoolCollector(Collector):
    """Shows the last snapshot; without one, only that the engine is down."""

    def __init__(self) -> None:
        self.snapshot: Snapshot | None = None

    def collect(self) -> Iterator[Metric]:
        """Every metric of the engine."""
        yield _gauge("engine_up", "1 while the engine's thread runs.", float(self.snapshot is not None))
        if self.snapshot is not None:
            yield from _counters(self.snapshot)
            yield from _gauges(self.snapshot)


def _counters(now: Snapshot) -> Iterator[Metric]:
    stats, cache = now.stats, now.cache
    yield _counter("prompt_tokens", "Prompt tokens of admitted requests.", stats.prompt_tokens)
    yield _counter("hit_tokens", "Prompt tokens that a checkpoint saved from being computed.", stats.hit_tokens)
    yield _counter("preemptions", "Times a request gave its memory up to an older one.", stats.preemptions)
    yield _counter("checkpoints_published", "Checkpoints put into the cache.", cache.get("checkpoints_published", 0))
    yield _counter("checkpoints_skipped", "Checkpoints not taken for want of a slot.", stats.checkpoints_skipped)
    yield _counter("states_evicted", "Checkpoints evicted.", cache.get("states_evicted", 0))
    yield _counter("rows_evicted", "KV rows evicted.", cache.get("rows_evicted", 0))
    forwards = CounterMetricFamily("holdover_forwards", "Forwards of the model.", labels=["kind"])
    forwards.add_metric(["prefill"], stats.prefill_forwards)
    forwards.add_metric(["decode"], stats.decode_forwards)
    yield forwards


def _gauges(now: Snapshot) -> Iterator[Metric]:
    yield _gauge("requests_running", "Requests that own a state slot.", now.running)
    yield _gauge("requests_waiting", "Requests that wait for memory.", now.waiting)
    for name, what, balance in (("state_slots", "State slots", now.slots), ("kv_rows", "KV rows", now.rows)):
        yield _gauge(f"{name}_capacity", f"{what} of the pool.", balance.total)
        units = GaugeMetricFamily(f"holdover_{name}", f"{what} by what holds them.", labels=["state"])
        for state in ("free", "cached", "locked"):
            units.add_metric([state], getattr(balance, state))
        yield units
    sizes = GaugeMetricFamily("holdover_pool_bytes", "Bytes that the pools allocated.", labels=["pool"])
    sizes.add_metric(["state"], now.state_bytes)
    sizes.add_metric(["kv"], now.kv_bytes)
    yield sizes


def _counter(name: str, what: str, value: int) -> CounterMetricFamily:
    return CounterMetricFamily(f"holdover_{name}", what, value=value)


def _gauge(name: str, what: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"holdover_{name}", what, value=value)
