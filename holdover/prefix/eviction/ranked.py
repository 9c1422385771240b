"""Orders that say of each checkpoint what it is worth."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

from holdover.store import LRU, Checkpoint


class Ranked(LRU[Checkpoint]):
    """The first to go is worth the least; the least recently used of equals."""

    @abstractmethod
    def worth(self, checkpoint: Checkpoint, age: int) -> float:
        """What keeping it is worth, at least 0; ``age`` is its place in the order of use, the newest one's being 1."""

    def oldest(self, may_go: Callable[[Checkpoint], bool]) -> Checkpoint | None:
        """First to go of those that ``may_go``, or None. O(checkpoints and the nodes below them)."""
        first, least = None, 0.0
        for age, checkpoint in zip(range(len(self), 0, -1), self, strict=True):
            if not may_go(checkpoint):
                continue
            worth = self.worth(checkpoint, age)
            if first is None or worth < least:
                first, least = checkpoint, worth
            if not worth:
                break
        return first
