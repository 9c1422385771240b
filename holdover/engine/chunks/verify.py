"""Whether a chunk that is kept is still what a prefill of it gives."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from holdover.chunks import ChunkEntry, Extras
from holdover.engine.chunks.prefill import ChunkPrefill
from holdover.engine.chunks.probe import attention_layers
from holdover.engine.core import EngineCore
from holdover.store import LeaseState, StateTiers

_NAMESPACE = b"verification"
# relative error that two prefills in pieces of other lengths may have, by what the model computes in
_ROUNDING = {"float32": 1e-4, "float16": 5e-3, "bfloat16": 2e-2}
# and what the rounding of stored elements adds: either prefill may be rounded the other way
_ELEMENTS = {"full": 0.0, "bfloat16": 1e-2, "int8": 2e-2}
# what is kept, and what a prefill gives
_Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Part:
    """One part of a chunk, compared in every layer.

    Attributes:
        name: ``keys``, ``values`` (``latents``, ``shared keys`` for latent attention), ``temporal``, ``conv``, or an
            extra's.
        error: largest over layers of ``|kept - fresh| / |fresh|``; infinite where it is no number.
        tolerance: what rounding explains.
    """

    name: str
    error: float
    tolerance: float

    @property
    def is_same(self) -> bool:
        """Whether rounding explains the difference."""
        return self.error <= self.tolerance


def verify(core: EngineCore, entry: ChunkEntry) -> tuple[Part, ...]:
    """Prefill a chunk again, alone, and compare everything that is kept of it. For the engine's thread.

    The second prefill is a chunk of its own for as long as it takes: rows, slots and extras of another tenant. Of a
    packed state, what the plan omits is not compared.

    Args:
        core: the engine.
        entry: a chunk that is kept.

    Raises:
        CapacityError: there is no room for a second one.
        CheckpointMismatchError: its checkpoint is not its state by its own record.
    """
    store, tiers = core.chunks.store, core.cache.tiers
    with ExitStack() as owned:
        owned.callback(store.release, store.hold([entry]))
        prefill = ChunkPrefill(core.runner, store, _NAMESPACE + entry.tenant, entry.tokens)
        while (fresh := prefill.advance(core.limits.idle_chunk_size)) is None:
            pass
        owned.callback(store.remove, fresh)
        owned.callback(store.release, store.hold([fresh]))
        kept_slot, fresh_slot = (owned.enter_context(_slot(tiers)) for _ in range(2))
        tiers.restore(entry.checkpoint, kept_slot, entry.chain)
        tiers.restore(fresh.checkpoint, fresh_slot, fresh.chain)
        if entry.checkpoint.tier == "compressed" and fresh.checkpoint.tier == "native":
            _round_trip(tiers, fresh_slot)
        return tuple(_compare(core, entry, fresh, kept_slot, fresh_slot))


def _compare(core: EngineCore, entry: ChunkEntry, fresh: ChunkEntry, kept_slot: int, fresh_slot: int) -> Iterator[Part]:
    tiers, layout = core.cache.tiers, core.runner.host.layout
    rounding = _ROUNDING[layout.kv.dtype]
    element = _ELEMENTS[tiers.codec.element] if entry.checkpoint.tier == "compressed" else 0.0
    for name, pairs in _rows(core, entry, fresh).items():
        yield Part(name, _largest(pairs), rounding)
    pool = tiers.native.pool
    for name, of_layer in (("temporal", pool.temporal), ("conv", pool.conv)):
        states = [of_layer(layer.index) for layer in layout.state.layers]
        yield Part(name, _largest((x[kept_slot], x[fresh_slot]) for x in states), rounding + element)
    for name, pairs in _extras(entry.extras, fresh.extras).items():
        yield Part(name, _largest(pairs), rounding)


def _rows(core: EngineCore, entry: ChunkEntry, fresh: ChunkEntry) -> dict[str, list[_Pair]]:
    found: dict[str, list[_Pair]] = {}
    for layer in attention_layers(core.runner):
        names = ("latents", "shared keys") if layer.kind == "latent" else ("keys", "values")
        for name, plane in zip(names, core.cache.kv.planes(layer.index), strict=True):
            kept, again = (plane[one.rows.to(plane.device)] for one in (entry, fresh))
            found.setdefault(name, []).append((kept, again))
    return found


def _extras(kept: Extras, fresh: Extras) -> dict[str, list[_Pair]]:
    bodies = [pair for i, body in kept.bodies.items() for pair in zip(body, fresh.bodies[i], strict=True)]
    pairs = {
        "transitions": [(x, fresh.transitions[i]) for i, x in kept.transitions.items()],
        "bodies": bodies,
        "inputs": [(x, fresh.inputs[i]) for i, x in kept.inputs.items()],
    }
    return {name: found for name, found in pairs.items() if found}


def _largest(pairs: Iterable[_Pair]) -> float:
    """Largest relative error over layers."""
    return max((_error(*pair) for pair in pairs), default=0.0)


def _error(kept: Tensor, fresh: Tensor) -> float:
    distance, norm = float((kept.double() - fresh.double()).norm()), float(fresh.double().norm())
    error = distance / norm if norm else (distance and math.inf)
    return math.inf if math.isnan(error) else error


@contextmanager
def _slot(tiers: StateTiers) -> Iterator[int]:
    lease = tiers.acquire(LeaseState.LIVE)
    try:
        yield lease.slot
    finally:
        lease.release()


def _round_trip(tiers: StateTiers, slot: int) -> None:
    """Make a slot what packing its state would leave of it."""
    pool, codec = tiers.native.pool, tiers.codec
    record = torch.empty(1, codec.nbytes, dtype=torch.uint8, device=pool.device)
    codec.pack(pool, [slot], record, [0])
    codec.unpack(record, [0], pool, [slot])
