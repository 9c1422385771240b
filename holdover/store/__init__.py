"""Where bytes live: leases, checkpoints, the KV pool and the order of eviction."""

from holdover.store.checkpoint import Checkpoint, restore
from holdover.store.kv_pool import SINK_ROW, KVPool
from holdover.store.lease import Balance, LeaseState, SlotAllocator, SlotLease
from holdover.store.lru import LRU

__all__ = ["LRU", "SINK_ROW", "Balance", "Checkpoint", "KVPool", "LeaseState", "SlotAllocator", "SlotLease", "restore"]
