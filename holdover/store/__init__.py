"""Where bytes live: leases, checkpoints in their tiers, the KV pool and the order of eviction."""

from holdover.store.checkpoint import Checkpoint
from holdover.store.kv_pool import SINK_ROW, KVPool
from holdover.store.lease import Balance, LeaseState, ResidentTier, SlotAllocator, SlotLease
from holdover.store.lru import LRU
from holdover.store.packed_pool import PackedPool
from holdover.store.tiers import StateTiers, TierOptions

__all__ = [
    "LRU",
    "SINK_ROW",
    "Balance",
    "Checkpoint",
    "KVPool",
    "LeaseState",
    "PackedPool",
    "ResidentTier",
    "SlotAllocator",
    "SlotLease",
    "StateTiers",
    "TierOptions",
]
