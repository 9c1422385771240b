"""Keep one checkpoint on every branch before a second one on any."""

from __future__ import annotations

from holdover.prefix.eviction.ranked import Ranked
from holdover.store import Checkpoint


class BranchCoverage(Ranked):
    """The first to go is the deepest checkpoint of the fewest branches; of several, the least recently used.

    What has a deeper checkpoint on every branch below it covers none: it goes before the only one of a conversation.
    """

    def gain(self, checkpoint: Checkpoint) -> int:
        """Branches of which it is the deepest."""
        return checkpoint.branches
