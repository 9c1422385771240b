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
        """First to go of those that ``may_go``, or None. O(checkpoints and the nodes below them)."""
        first, fewest = None, 0
        # the order of use is that of iteration
        for checkpoint in filter(may_go, self):
            branches = standing_of(checkpoint).branches
            if first is None or branches < fewest:
                first, fewest = checkpoint, branches
            if not branches:
                break
        return first
