"""The combinations: how checkpoints are kept, whether decode keeps a log, whether it drafts, how often it restores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from holdover.engine.options import EngineOptions
from holdover.evaluation.protocols.arms import DENSE, Arm
from holdover.prefix.policies import EndOfRequest
from holdover.state import EXACT, Lineage

# a finished turn's, that of the turn before while it is still read, and one to move in
_CHECKPOINTS = 3

# drafts need a log to be taken back from
WAYS: tuple[tuple[Literal["dense", "deferred"], Literal["off", "ngram"]], ...] = (
    ("dense", "off"),
    ("deferred", "off"),
    ("deferred", "ngram"),
)


@dataclass(frozen=True)
class Combination:
    """One way to serve a conversation.

    Attributes:
        checkpoint: how checkpoints are kept.
        decode: whether decode keeps a log.
        speculate: whether it drafts.
        once: whether every turn resumes from an exact past that was restored once, and not from the turn before:
            the control that tells what many restores add.
    """

    checkpoint: Arm
    decode: Literal["dense", "deferred"] = "dense"
    speculate: Literal["off", "ngram"] = "off"
    once: bool = False

    @property
    def name(self) -> str:
        """The combination among others of one run."""
        parts = (self.checkpoint.name, self.decode, self.speculate, *(["once"] if self.once else []))
        return "/".join(parts)

    @property
    def is_lossy(self) -> bool:
        """Whether a restore loses something."""
        return self.checkpoint.kind != DENSE

    def lineage(self, turn: int) -> Lineage:
        """What the state is that turn ``turn`` (1 for the second turn) resumes from."""
        if not self.is_lossy:
            return EXACT
        kind: Literal["nr", "wr"] = "wr" if self.checkpoint.refresh == "suffix" else "nr"
        return Lineage(kind, 1 if self.once else turn)

    def options(self, longest: int, merge_interval: int | None, kv_budget: int) -> EngineOptions:
        """An engine that runs one conversation at a time and keeps the state of every turn that ends.

        Args:
            longest: most tokens of a conversation.
            merge_interval: M of the log; None for the engine's own choice.
            kv_budget: bytes of its rows.
        """
        base = EngineOptions(
            max_running=1,
            max_context=longest,
            kv_budget=kv_budget,
            decode=self.decode,
            merge_interval=merge_interval if self.decode == "deferred" else None,
            speculate=self.speculate,
            # a graph is replayed without the model, which could then not be listened to
            cuda_graphs=False,
        )
        return replace(self.checkpoint.options(base, _CHECKPOINTS), policy=EndOfRequest())


def combinations_of(checkpoints: Sequence[Arm]) -> list[Combination]:
    """Every way to decode with every way to keep checkpoints, and the control of those that lose something."""
    found = [Combination(one, *way) for one in checkpoints for way in WAYS]
    return found + [Combination(one, "deferred", once=True) for one in checkpoints if one.kind != DENSE]
