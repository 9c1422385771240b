"""In which order checkpoints leave the resident tiers when a slot is needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from holdover.prefix.eviction.cost import CostAware
from holdover.prefix.eviction.coverage import BranchCoverage
from holdover.store import LRU, Checkpoint, ResidentTier

__all__ = ["EVICTIONS", "BranchCoverage", "CostAware", "Eviction"]

Eviction = Literal["lru", "cost", "coverage"]

# each from the bytes of a checkpoint in each tier
EVICTIONS: Mapping[Eviction, Callable[[Mapping[ResidentTier, int]], LRU[Checkpoint]]] = {
    "lru": lambda _: LRU(),
    "cost": CostAware,
    "coverage": lambda _: BranchCoverage(),
}
