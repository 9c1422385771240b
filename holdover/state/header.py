"""What a checkpoint's bytes are: their depth, key, layout, shard, codec and lineage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from holdover.errors import CheckpointMismatchError


@dataclass(frozen=True)
class Lineage:
    """How a state, and every KV row computed after it, came to be.

    Attributes:
        kind: ``exact``; ``nr`` (restored without its omitted units); ``wr`` (omitted units replayed over a window);
            ``composed`` (initialised from chunks, valid under its salt only).
        losses: number of lossy restores in the state's past; 0 for ``exact``.
        salt: the composition's salt; empty unless ``composed``.
    """

    kind: Literal["exact", "nr", "wr", "composed"] = "exact"
    losses: int = 0
    salt: str = ""

    @property
    def is_exact(self) -> bool:
        """Whether the state is what an uncached run would have."""
        return self.kind == "exact"

    def after_loss(self, kind: Literal["nr", "wr"]) -> Lineage:
        """Lineage of what a lossy restore makes of this state."""
        return Lineage(kind, self.losses + 1)

    def is_better(self, other: Lineage) -> bool:
        """Whether it is strictly closer to an uncached run: exact before all others, then fewer losses."""
        return (not self.is_exact, self.losses) < (not other.is_exact, other.losses)

    def worst(self, *others: Lineage) -> Lineage:
        """The one farthest from an uncached run, the first of equals: what reads several has the lineage of that."""
        found = self
        for other in others:
            if found.is_better(other):
                found = other
        return found

    def __str__(self) -> str:
        if self.kind == "exact":
            return "exact"
        return f"{self.kind}({self.salt if self.kind == 'composed' else self.losses})"


EXACT = Lineage()


@dataclass(frozen=True)
class CheckpointHeader:
    """Everything about a checkpoint except where its bytes are.

    Attributes:
        depth: number of tokens that the state has seen.
        key: chained hash of those tokens (see `KeyChain`).
        layout: digest of the `StateLayout`.
        lineage: how the state came to be.
        codec: how the bytes are encoded.
        plan: digest of the retention plan, or None when every unit is kept.
        rank: shard of the state that the bytes hold.
        world: number of shards.
    """

    depth: int
    key: bytes
    layout: str
    lineage: Lineage = EXACT
    codec: str = "dense"
    plan: str | None = None
    rank: int = 0
    world: int = 1

    def expect(self, depth: int, key: bytes, layout: str) -> None:
        """Verify that the bytes are those wanted.

        Raises:
            CheckpointMismatchError: depth, key or layout differ.
        """
        if (self.depth, self.key, self.layout) != (depth, key, layout):
            raise CheckpointMismatchError(
                f"checkpoint holds depth {self.depth}, key {self.key.hex()}, layout {self.layout}; "
                f"wanted depth {depth}, key {key.hex()}, layout {layout}"
            )
