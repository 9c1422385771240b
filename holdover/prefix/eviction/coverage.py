"""Keep one checkpoint on every branch before a second one on any."""

from __future__ import annotations

from collections.abc import Callable

from holdover.prefix.eviction.standing import standing_of
from holdover.store import LRU, Checkpoint


class BranchCoverage(LRU[Checkpoint]):
    """The first to go is the deepest checkpoint of the fewest branches; of several, the least recently used.

    What has a deeper checkpoint on every branch below it covers none: it goes before the only one of a conversation.
    """

    def oldest(self, may_go: Callable[[Checkpoint], bool]) -> Checkpoint | None:
        """First to go of those that ``may_go``, or None. O(checkpoints and the nodes around them)."""
        # `min` keeps the first of equals, and the order of use is that of iteration
        return min((c for c in self if may_go(c)), key=lambda c: standing_of(c).branches, default=None)
