"""Which recurrent state a composed context begins with: one of its chunks', all of them composed, or none (§3.2).

An initialiser writes a live slot's temporal and conv state. What is written is not the state of any prefix, so it is
never *restored*: `seed` labels it as composed, under a key of its caller's choice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

from holdover.chunks.entry import ChunkEntry
from holdover.chunks.extras import seam_length
from holdover.chunks.transition import carry
from holdover.errors import RequestError
from holdover.state import KeyChain, Lineage
from holdover.store import StateTiers


class Initialiser(Protocol):
    """Maps the chunks' states to one initial state (LinearKV, Eq. 4)."""

    @property
    def name(self) -> str:
        """What the state depends on beside the chunks, for salts and reports."""

    def write(self, tiers: StateTiers, entries: Sequence[ChunkEntry], slot: int, scratch: int) -> None:
        """Write every layer's state into ``slot``. Mutates ``slot`` and ``scratch``, whatever they held.

        Args:
            tiers: where the chunks' checkpoints are; all pinned by the caller.
            entries: the prompt's chunks in order, at least one; a chunk that occurs twice is there twice.
            slot: a native slot.
            scratch: another, to bring states up into.

        Raises:
            CheckpointMismatchError: a checkpoint is not its chunk's state.
            RequestError: a chunk was kept without what it takes.
        """


@dataclass(frozen=True)
class Last:
    """The last chunk's state, its conv inputs included (§3.2)."""

    name: str = "last"

    def write(self, tiers: StateTiers, entries: Sequence[ChunkEntry], slot: int, scratch: int) -> None:
        """See `Initialiser.write`."""
        _restore(tiers, entries[-1], slot)


@dataclass(frozen=True)
class SeededRandom:
    """One chunk's state for all layers, its conv inputs included; which one, the seed says (Appendix A)."""

    seed: int = 0

    @property
    def name(self) -> str:
        """Name and seed."""
        return f"random({self.seed})"

    def write(self, tiers: StateTiers, entries: Sequence[ChunkEntry], slot: int, scratch: int) -> None:
        """See `Initialiser.write`."""
        _restore(tiers, entries[Random(self.seed).randrange(len(entries))], slot)


@dataclass(frozen=True)
class Exact:
    """All chunks' states, each carried on by the transitions of those after it (Eq. 6); the last one's conv inputs."""

    name: str = "exact"

    def write(self, tiers: StateTiers, entries: Sequence[ChunkEntry], slot: int, scratch: int) -> None:
        """See `Initialiser.write`."""
        if any(not entry.extras.transitions for entry in entries[1:]):
            raise RequestError("exact composition needs chunks that were kept with transitions", param="initialiser")
        pool = tiers.native.pool
        _restore(tiers, entries[0], slot)
        for entry in entries[1:]:
            _restore(tiers, entry, scratch)
            for layer in pool.layout.layers:
                state, local = (pool.temporal(layer.index)[s] for s in (slot, scratch))
                state.copy_(carry(entry.extras.transitions[layer.index], state).add_(local))
                pool.conv(layer.index)[slot].copy_(pool.conv(layer.index)[scratch])


@dataclass(frozen=True)
class Zero:
    """The empty state. With everything recomputed, what follows is an ordinary prefill."""

    name: str = "zero"

    def write(self, tiers: StateTiers, entries: Sequence[ChunkEntry], slot: int, scratch: int) -> None:
        """See `Initialiser.write`."""
        tiers.native.pool.reset(slot, b"")


# by the name that a caller gives
INITIALISERS: dict[str, Callable[..., Initialiser]] = {
    "last": Last,
    "random": SeededRandom,
    "exact": Exact,
    "zero": Zero,
}


def seed(
    initialiser: Initialiser,
    tiers: StateTiers,
    entries: Sequence[ChunkEntry],
    slot: int,
    scratch: int,
    *,
    at: KeyChain,
    salt: str,
) -> Lineage:
    """Begin a composed sequence: write the initial state, and label it as the composed state of ``at``'s tokens.

    Mutates ``slot`` and ``scratch``, which is nobody's state afterwards. If it raises, neither is.

    Args:
        initialiser: which state.
        tiers: see `Initialiser.write`.
        entries: likewise.
        slot: likewise.
        scratch: likewise.
        at: running key, in the composition's own namespace, of the tokens that the state shall count as having seen.
        salt: the composition's.

    Returns:
        The state's lineage: ``composed``, with the losses of the worst of the chunks.
    """
    pool = tiers.native.pool
    pool.forget(slot)
    try:
        initialiser.write(tiers, entries, slot, scratch)
    except BaseException:
        pool.forget(slot)
        raise
    finally:
        pool.forget(scratch)
    lineage = Lineage("composed", max(entry.checkpoint.restored.losses for entry in entries), salt)
    pool.adopt(slot, at.copy(), lineage)
    return lineage


def pass_over(tiers: StateTiers, entry: ChunkEntry, slot: int, scratch: int) -> None:
    """Take a slot that has run the first `seam_length` tokens of a chunk to the chunk's end, by the map of the others.

    For composition whose seams are run again: those tokens saw their true predecessors, and the others' conv windows
    lie within the chunk. Mutates the state of ``slot``, whose label stays, and ``scratch``.

    Raises:
        RequestError: the chunk was kept without bodies; nothing was changed.
        CheckpointMismatchError: its checkpoint is not its state; nothing was changed but ``scratch``.
    """
    if not entry.extras.bodies:
        raise RequestError("composition over run seams needs chunks that were kept with bodies", param="initialiser")
    pool = tiers.native.pool
    if len(entry) <= seam_length(pool.layout):
        # all of it was run
        return
    _restore(tiers, entry, scratch)
    pool.settle([slot])
    for layer in pool.layout.layers:
        state = pool.temporal(layer.index)[slot]
        state.copy_(entry.extras.bodies[layer.index].apply(state))
        pool.conv(layer.index)[slot].copy_(pool.conv(layer.index)[scratch])
    pool.forget(scratch)


def _restore(tiers: StateTiers, entry: ChunkEntry, slot: int) -> None:
    tiers.restore(entry.checkpoint, slot, entry.chain)
