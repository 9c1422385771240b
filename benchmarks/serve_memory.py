"""One budget for all that a server's recurrent state takes, held against what the allocator says."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.common import Row
from holdover.engine.engine import Engine
from holdover.errors import HoldoverError
from holdover.server.pools import Snapshot
from holdover.store import LeaseState

# pools that hold recurrent state, and room to pack in
KINDS = {"native": "state", "compressed": "compressed", "staging": "staging"}


def held(engine: Engine, before: int) -> int:
    """Bytes that building an engine took on its GPU, its KV rows and its decoder's buffers left out.

    Args:
        engine: before its first step.
        before: bytes that were allocated there before it was built.
    """
    core = engine.core
    others = core.cache.kv.nbytes + (0 if core.runner.decoder is None else core.runner.decoder.nbytes)
    return torch.cuda.memory_allocated() - before - others


def pools(engine: Engine) -> dict[str, int]:
    """Bytes of each pool as the server's metrics will have them; before the engine's thread starts."""
    return dict(Snapshot.of(engine.core).pool_bytes)


def staged(engine: Engine) -> int:
    """Bytes that packing, unpacking and a refresh of a state took at most on a GPU. Engines of ranks call together."""
    tiers, pool = engine.core.cache.tiers, engine.core.cache.tiers.native.pool
    if tiers.packed is None:
        return 0
    source, target = (tiers.acquire(LeaseState.LIVE) for _ in range(2))
    packed = tiers.packed.acquire(LeaseState.CACHED)
    pool.reset(source.slot, b"staged")
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    with torch.inference_mode():
        tiers.packed.pool.pack(pool, source.slot, packed.slot)
        tiers.codec.unpack(tiers.packed.pool.records, [packed.slot], pool, [target.slot])
        if engine.core.refresh is not None:
            tiers.codec.copy_omitted(pool, source.slot, target.slot)
    torch.cuda.synchronize()
    most = torch.cuda.max_memory_allocated() - before
    for lease in (source, target, packed):
        lease.release()
    return most


def check(row: Row, budget: int, measured: dict[str, int]) -> Row:
    """What a run's state took by kind, from the server's own metrics.

    Args:
        row: of `holdover bench serve`, or its `arm` and `pool_bytes` alone.
        budget: bytes that every arm has.
        measured: by the GPU's allocator: `held` and `staged`; empty without one.

    Raises:
        HoldoverError: it is more than the budget, or more than the server says.
    """
    pools: dict[str, Any] = row["pool_bytes"]
    sizes = {kind: int(pools.get(pool, 0)) for kind, pool in KINDS.items()}
    total = sum(sizes.values())
    if total > budget:
        raise HoldoverError(f"{row['arm']} holds {total:,} bytes of state ({sizes}), and its budget is {budget:,}")
    if measured:
        if (found := measured["held"] + measured["staged"]) > budget:
            raise HoldoverError(
                f"{row['arm']} took {found:,} bytes of state by the allocator ({measured}); its budget is {budget:,}"
            )
        if measured["staged"] > sizes["staging"]:
            raise HoldoverError(
                f"{row['arm']} packs in {measured['staged']:,} bytes beside its pools, and said {sizes['staging']:,}"
            )
    return {"budget_bytes": budget, "state_bytes": total, "bytes": sizes, "allocated": measured or None}
