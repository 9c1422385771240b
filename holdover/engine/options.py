"""How an engine is set up, as its caller says it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from holdover.codec import Arrangement
from holdover.engine.chunks.settings import DEFAULT_SETTINGS, ChunkSettings
from holdover.engine.decode.plan import DecodeMode
from holdover.engine.speculation import Speculation
from holdover.errors import ConfigError
from holdover.prefix.eviction import Eviction
from holdover.prefix.policies import DEFAULT_POLICY, CheckpointPolicy
from holdover.retention import Element, RefreshPolicy, RetentionPlan

_SPILL_BUDGET = 20 << 30
# prefill forwards: what a GPU computes must outlast what the host takes to launch it
CHUNK_SIZE, CHUNK_SIZE_ON_GPU = 512, 2048


@dataclass(frozen=True)
class EngineOptions:
    """How an engine is set up.

    Attributes:
        dtype: ``auto``, ``float32``, ``bfloat16`` or ``float16``.
        device: a torch device or ``auto``.
        state_budget: bytes for recurrent state, live and cached, in all resident tiers; None for a share of what is
            free.
        kv_budget: bytes for KV, live and cached; None likewise.
        max_context: longest sequence; None for the model's own limit.
        max_running: sequences that run together.
        chunk_size: most tokens of one prefill forward while other requests wait for their next token; None for 512 on
            a CPU and 2,048 on a GPU.
        idle_chunk_size: the same while none does; None for four times as many.
        policy: when to take checkpoints.
        plan: retention plan that checkpoints are packed by; None with ``element="full"`` keeps them dense.
        element: how a packed checkpoint stores what it retains.
        arrangement: how packed checkpoints arrange it.
        refresh: ``suffix`` to replay a suffix for omitted units, ``none`` to leave them at zero.
        native_slots: native slots, to override the split of the state budget.
        packed_slots: packed slots, likewise.
        dense_spill: whether checkpoints may stay dense while no packed slot is free.
        watermark: native slots to keep free by demotions ahead of need.
        eviction: which checkpoint goes first: ``cost`` weighs the tokens that it saves against its last use,
            ``coverage`` spares the deepest one of every branch, ``lru`` is the least recently used.
        packed_above: depth up to which checkpoints are not packed; None for the longest horizon that the plan omits
            where nothing is refreshed, and any depth otherwise.
        max_losses: most lossy restores that a resumed state may have in its past; None for any number.
        shadow_share: share of approximate hits to compute again exactly.
        shadow_gate: P95 of the KL in nats beyond which shadow runs make the engine exact; None to measure only.
        host_budget: bytes of host memory for checkpoints below the resident tiers; None for none.
        spill_dir: directory for checkpoints that outlive the process; None for none.
        spill_budget: bytes that it may hold.
        spill_lag: checkpoints that may be unwritten when a request ends, which are those that a crash loses.
        decode: ``deferred`` keeps a log of recent updates beside each state, ``dense`` writes the state at every
            token, ``auto`` does what is faster.
        merge_interval: tokens between two writes of a state; None for what is fastest.
        speculate: who proposes drafts: ``ngram`` looks the last tokens up in the sequence, ``mtp`` is the model's own
            head, ``off`` is nobody.
        draft_tokens: drafts that one step verifies.
        chunks: room for chunks that are prefilled alone, and how prompts are composed of them.
        cuda_graphs: whether decode steps on a GPU are captured and replayed.
        poison: fill freed memory with NaN (tests).
    """

    dtype: str = "auto"
    device: str = "auto"
    state_budget: int | None = None
    kv_budget: int | None = None
    max_context: int | None = None
    max_running: int = 16
    chunk_size: int | None = None
    idle_chunk_size: int | None = None
    policy: CheckpointPolicy = DEFAULT_POLICY
    plan: RetentionPlan | None = None
    element: Element = "full"
    arrangement: Arrangement = "ragged"
    refresh: RefreshPolicy = "none"
    native_slots: int | None = None
    packed_slots: int | None = None
    dense_spill: bool = True
    watermark: int = 1
    eviction: Eviction = "cost"
    packed_above: int | None = None
    max_losses: int | None = None
    shadow_share: float = 0.0
    shadow_gate: float | None = None
    host_budget: int | None = None
    spill_dir: Path | None = None
    spill_budget: int = _SPILL_BUDGET
    spill_lag: int = 1
    decode: DecodeMode = "auto"
    merge_interval: int | None = None
    speculate: Speculation = "off"
    draft_tokens: int = 3
    chunks: ChunkSettings = DEFAULT_SETTINGS
    cuda_graphs: bool = True
    poison: bool = False

    def __post_init__(self) -> None:
        positive = ("max_running", "chunk_size", "idle_chunk_size", "max_context", "state_budget", "kv_budget")
        counts = ("native_slots", "packed_slots", "host_budget", "spill_budget", "merge_interval", "draft_tokens")
        for name in (*positive, *counts):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1, got {value}")
        if self.spill_lag < 0 or self.watermark < 0:
            raise ConfigError(f"spill_lag ({self.spill_lag}) and watermark ({self.watermark}) cannot be negative")
        named = {
            "element": Element,
            "refresh": RefreshPolicy,
            "eviction": Eviction,
            "decode": DecodeMode,
            "speculate": Speculation,
        }
        for name, literal in named.items():
            allowed = get_args(literal)
            if getattr(self, name) not in allowed:
                raise ConfigError(f"{name} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}")
        if self.max_losses is not None and self.max_losses < 0:
            raise ConfigError(f"max_losses cannot be negative, got {self.max_losses}")
        if not 0 <= self.shadow_share <= 1:
            raise ConfigError(f"shadow_share must be between 0 and 1, got {self.shadow_share}")

    def check_whole(self) -> None:
        """Check what only makes sense together, once the plan is chosen.

        Raises:
            ConfigError: an option is for packed checkpoints, and there are none.
        """
        if self.packed_slots is not None and not self.is_compressed:
            raise ConfigError("packed slots are for packed checkpoints: give a plan or an element as well")
        if self.refresh == "suffix" and self.plan is None:
            raise ConfigError("refresh=suffix recovers units that a retention plan omits: give a plan as well")
        if self.shadow_share and not self.is_compressed:
            raise ConfigError("the shadow check compares approximate hits: give a plan or an element as well")

    @property
    def is_compressed(self) -> bool:
        """Whether checkpoints are packed."""
        return self.plan is not None or self.element != "full"
