"""The engine's own counters and pools, read on its thread and shown to Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from holdover.engine.core import EngineCore
from holdover.engine.decode import DecodeStats
from holdover.engine.shadow import ShadowStats
from holdover.engine.speculation import SpeculationStats
from holdover.engine.stats import EngineStats
from holdover.store import Balance


@dataclass(frozen=True)
class Snapshot:
    """One consistent reading of an engine.

    Attributes:
        stats: the engine's totals.
        cache: totals of the prefix cache and its tiers by name.
        spill: totals of what goes to and comes from the shelves, by name; empty without any.
        shadow: what shadow runs have found, or None without any.
        decode: what decode steps did, or None where they run as anything else does.
        speculation: what became of drafts, or None without any.
        running: requests that own a slot.
        waiting: requests that own nothing yet.
        slots: where the slots of each resident tier are.
        rows: where the KV rows are.
        pool_bytes: bytes of each pool, and the most that packing takes beside them.
        chunks: what chunks hold: how many, their rows, their bytes of extras.
    """

    stats: EngineStats
    cache: Mapping[str, int]
    spill: Mapping[str, int]
    shadow: ShadowStats | None
    decode: DecodeStats | None
    speculation: SpeculationStats | None
    running: int
    waiting: int
    slots: Mapping[str, Balance]
    rows: Balance
    pool_bytes: Mapping[str, int]
    chunks: Mapping[str, int]

    @classmethod
    def of(cls, core: EngineCore) -> Snapshot:
        """Read an engine, on its own thread. Mutates nothing."""
        tiers, kv, store = core.cache.tiers, core.cache.kv, core.chunks.store
        sizes = {"state": tiers.native.pool.nbytes, "kv": kv.nbytes}
        slots = {"native": tiers.balance("native")}
        decoder, speculator = core.runner.decoder, core.speculator
        if decoder is not None:
            sizes["decode"] = decoder.nbytes
        if tiers.packed is not None:
            sizes["compressed"] = tiers.packed.pool.nbytes
            sizes["staging"] = tiers.codec.staging_bytes
            slots["compressed"] = tiers.balance("compressed")
        return cls(
            stats=replace(core.stats, hits=core.stats.hits.copy(), chunk_tokens=core.stats.chunk_tokens.copy()),
            cache=dict(core.cache.counters),
            spill=core.spill.totals() if core.spill is not None else {},
            shadow=replace(core.shadow.stats) if core.shadow is not None else None,
            decode=replace(decoder.stats, forwards=decoder.stats.forwards.copy()) if decoder is not None else None,
            speculation=replace(speculator.stats) if speculator is not None else None,
            running=core.num_running,
            waiting=core.num_waiting,
            slots=slots,
            rows=core.cache.rows.balance(),
            pool_bytes=sizes,
            chunks={"entries": len(store.entries), "rows": store.rows, "extra_bytes": store.extra_bytes},
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
            yield from _chunks(self.snapshot)
            yield from _approximations(self.snapshot)
            yield from _decoding(self.snapshot)


def _counters(now: Snapshot) -> Iterator[Metric]:
    stats, cache = now.stats, now.cache
    yield _counter("prompt_tokens", "Prompt tokens of admitted requests.", stats.prompt_tokens)
    yield _counter("hit_tokens", "Prompt tokens below the depth at which requests resumed.", stats.hit_tokens)
    yield _counter("preemptions", "Times a request gave its memory up to an older one.", stats.preemptions)
    yield _counter("checkpoints_published", "Checkpoints put into the cache.", cache.get("checkpoints_published", 0))
    yield _counter("checkpoints_skipped", "Checkpoints not taken for want of a slot.", stats.checkpoints_skipped)
    yield _counter("states_evicted", "Checkpoints evicted.", cache.get("states_evicted", 0))
    yield _counter("rows_evicted", "KV rows evicted.", cache.get("rows_evicted", 0))
    yield _counter("demotions", "Checkpoints moved from native to packed slots.", cache.get("demotions", 0))
    yield _counter("demotions_failed", "Moves that failed; the checkpoint stayed.", cache.get("demotions_failed", 0))
    yield _labelled("hits", "Requests that resumed, by where the checkpoint was.", "tier", stats.hits)
    spilled = {event: count for event, count in now.spill.items() if event != "bytes"}
    yield _labelled("spill", "Checkpoints to and from the shelves, by what became of them.", "event", spilled)
    yield _counter("spill_bytes", "Bytes written to the shelves.", now.spill.get("bytes", 0))
    forwards = {"prefill": stats.prefill_forwards, "decode": stats.decode_forwards}
    yield _labelled("forwards", "Forwards of the model.", "kind", forwards)


def _gauges(now: Snapshot) -> Iterator[Metric]:
    yield _gauge("requests_running", "Requests that own a state slot.", now.running)
    yield _gauge("requests_waiting", "Requests that wait for memory.", now.waiting)
    capacity = GaugeMetricFamily("holdover_state_slots_capacity", "State slots of each tier.", labels=["tier"])
    slots = GaugeMetricFamily("holdover_state_slots", "State slots by what holds them.", labels=["tier", "state"])
    for tier, balance in now.slots.items():
        capacity.add_metric([tier], balance.total)
        for state in ("free", "cached", "locked"):
            slots.add_metric([tier, state], getattr(balance, state))
    yield capacity
    yield slots
    yield _gauge("kv_rows_capacity", "KV rows of the pool.", now.rows.total)
    rows = GaugeMetricFamily("holdover_kv_rows", "KV rows by what holds them.", labels=["state"])
    for state in ("free", "cached", "locked"):
        rows.add_metric([state], getattr(now.rows, state))
    yield rows
    about = "Bytes that the pools allocated; staging: the most that packing takes beside them."
    sizes = GaugeMetricFamily("holdover_pool_bytes", about, labels=["pool"])
    for pool, size in now.pool_bytes.items():
        sizes.add_metric([pool], size)
    yield sizes


def _chunks(now: Snapshot) -> Iterator[Metric]:
    yield _counter("chunks_built", "Chunks prefilled alone and kept.", now.cache.get("chunks_built", 0))
    yield _counter("chunks_evicted", "Chunks evicted.", now.cache.get("chunks_evicted", 0))
    yield _counter("composed_requests", "Requests whose prompt was composed of chunks.", now.stats.composed)
    what = "Prompt tokens of requests over chunks, by what was done for them."
    yield _labelled("chunk_tokens", what, "use", now.stats.chunk_tokens)
    yield _gauge("chunks", "Chunks that are kept.", now.chunks["entries"])
    yield _gauge("chunk_rows", "KV rows of chunks, of those being built too.", now.chunks["rows"])
    yield _gauge("chunk_extra_bytes", "Bytes of chunks' transitions and inputs.", now.chunks["extra_bytes"])


def _approximations(now: Snapshot) -> Iterator[Metric]:
    stats, shadow = now.stats, now.shadow
    yield _counter("approximate_hits", "Hits whose state is not exact.", stats.approximate_hits)
    yield _gauge("losses_max", "Most lossy restores in the past of a resumed state.", stats.losses_max)
    yield _counter("refresh_tokens", "Tokens replayed to recover omitted units.", stats.refresh_tokens)
    yield _counter("refresh_seconds", "Time that took.", stats.refresh_seconds)
    yield _counter("refreshes_failed", "Hits used without the refresh asked for.", stats.refreshes_failed)
    if shadow is not None:
        yield _counter("shadow_checks", "Approximate hits computed again exactly.", shadow.checked)
        yield _counter("shadow_skipped", "Hits chosen for it while enough checks were under way.", shadow.skipped)
        yield _counter("shadow_kl_nats", "Their KL, exact to approximate, summed.", shadow.kl_sum)
        yield _gauge("shadow_kl_max", "The largest of them, in nats.", shadow.kl_max)
        yield _counter("shadow_over_gate", "Those above the gate.", shadow.over_gate)
        yield _gauge("shadow_tripped", "1 once they showed that the gate does not hold.", float(shadow.tripped))


def _decoding(now: Snapshot) -> Iterator[Metric]:
    if (decode := now.decode) is not None:
        what = "Decode forwards, by how they advanced the state."
        yield _labelled("decode_forwards", what, "advance", decode.forwards)
        yield _counter("graph_replays", "Decode forwards that replayed a CUDA graph.", decode.replays)
        yield _counter("graph_captures", "CUDA graphs captured.", decode.captures)
        yield _counter("folds", "Logs that decode forwards folded into their states.", decode.folds)
        yield _counter(
            "mixed_phase_forwards", "Decode forwards with three or more different log lengths.", decode.mixed
        )
        yield _gauge("phases_max", "Most different log lengths that met in one forward.", decode.phases_max)
    if (drafts := now.speculation) is not None:
        yield _counter("draft_verifications", "Forwards that verified drafts.", drafts.verifications)
        yield _counter("draft_tokens", "Tokens that were drafted and verified.", drafts.drafted)
        yield _counter("draft_tokens_accepted", "Those of them that were generated.", drafts.accepted)


def _labelled(name: str, what: str, label: str, values: Mapping[str, float]) -> CounterMetricFamily:
    family = CounterMetricFamily(f"holdover_{name}", what, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def _counter(name: str, what: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(f"holdover_{name}", what, value=value)


def _gauge(name: str, what: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"holdover_{name}", what, value=value)
