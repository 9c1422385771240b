"""Putting an engine together: pools within their budgets, the runner, the cache and the loop."""

from __future__ import annotations

from dataclasses import dataclass

from holdover.engine.core import EngineCore, Limits
from holdover.engine.memory import free_memory, plan_memory
from holdover.engine.runner import Host, Runner
from holdover.errors import ConfigError
from holdover.prefix import PrefixCache
from holdover.prefix.policies import DEFAULT_POLICY, CheckpointPolicy
from holdover.state import SlotPool
from holdover.store import KVPool, SlotAllocator

_IDLE_FACTOR = 4


@dataclass(frozen=True)
class EngineOptions:
    """How an engine is set up.

    Attributes:
        dtype: ``auto``, ``float32``, ``bfloat16`` or ``float16``.
        device: a torch device or ``auto``.
        state_memory: bytes for recurrent state, live and cached; None for a share of what is free.
        kv_memory: bytes for KV, live and cached; None likewise.
        max_context: longest sequence; None for the model's own limit.
        max_running: sequences that run together.
        chunk_size: most tokens of one prefill forward while other requests wait for their next token.
        idle_chunk_size: the same while none does; None for four times as many.
        policy: when to take checkpoints.
        poison: fill freed memory with NaN (tests).
    """

    dtype: str = "auto"
    device: str = "auto"
    state_memory: int | None = None
    kv_memory: int | None = None
    max_context: int | None = None
    max_running: int = 16
    chunk_size: int = 512
    idle_chunk_size: int | None = None
    policy: CheckpointPolicy = DEFAULT_POLICY
    poison: bool = False

    def __post_init__(self) -> None:
        for name in ("max_running", "chunk_size", "idle_chunk_size", "max_context", "state_memory", "kv_memory"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1, got {value}")


def build_core(host: Host, options: EngineOptions) -> tuple[EngineCore, int]:
    """Allocate the pools and build the engine's loop on them.

    Returns:
        The loop, and the longest sequence that it can run.

    Raises:
        ConfigError: a budget is too small for one sequence.
    """
    layout = host.layout
    max_context = min(layout.max_context, options.max_context or layout.max_context)
    memory = plan_memory(
        layout,
        state_memory=options.state_memory,
        kv_memory=options.kv_memory,
        free_bytes=free_memory(host.device),
        max_context=max_context,
    )
    slots = SlotPool(layout.state, memory.num_slots, host.device)
    kv = KVPool(layout.kv, memory.num_rows, host.device, poison=options.poison)
    cache = PrefixCache(SlotAllocator(slots, poison=options.poison), kv)
    idle_chunk_size = options.idle_chunk_size or _IDLE_FACTOR * options.chunk_size
    limits = Limits(min(options.max_running, memory.num_slots), options.chunk_size, idle_chunk_size)
    core = EngineCore(Runner(host, slots, kv), cache, limits, options.policy)
    return core, min(max_context, memory.num_rows)
