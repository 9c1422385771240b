"""In which order checkpoints leave the resident tiers when a slot is needed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from holdover.prefix.eviction.cost import CostAware
from holdover.prefix.eviction.coverage import BranchCoverage
from holdover.store import LRU, Checkpoint

__all__ = ["EVICTIONS", "BranchCoverage", "CostAware", "Eviction"]

Eviction = Literal["lru", "cost", "coverage"]

EVICTIONS: Mapping[Eviction, type[LRU[Checkpoint]]] = {"lru": LRU, "cost": CostAware, "coverage": BranchCoverage}
