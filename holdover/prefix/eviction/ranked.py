"""Orders that say of each checkpoint what it is worth."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from math import inf

from holdover.store import LRU, Checkpoint


class Ranked(LRU[Checkpoint]):
    """The first to go is worth the least; the least recently used of equals."""

    @abstractmethod
    def gain(self, checkpoint: Checkpoint) -> int:
        """What a use of it would gain, at least 0."""

    def worth(self, gain: int, age: int) -> float:
        """What keeping it is worth: never less for a greater gain, nor more for a greater age.

        Args:
            gain: what a use of it would gain.
            age: its place in the order of use, the newest one's being 1.
        """
        return gain

    def oldest(self, may_go: Callable[[Checkpoint], bool]) -> Checkpoint | None:
        """First to go of those that ``may_go``, or None. O(checkpoints), and no tree is walked."""
        first, least, lowest, gain_of = None, inf, inf, self.gain
        for older, checkpoint in enumerate(self):
            gain = gain_of(checkpoint)
            # what gains as much as an older one is worth as much: few are left to be asked and compared
            if gain < lowest and may_go(checkpoint):
                lowest = gain
                worth = self.worth(gain, len(self) - older)
                if worth < least:
                    first, least = checkpoint, worth
                if not gain:
                    break
        return first
