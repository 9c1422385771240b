"""Keep what promises to save the most computation for its bytes, the less so the longer nobody has used it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from holdover.prefix.eviction.standing import standing_of
from holdover.store import LRU, Checkpoint, ResidentTier


class CostAware(LRU[Checkpoint]):
    """The first to go promises the least: tokens saved × branches ÷ bytes ÷ age; the least recently used of equals.

    Saved are the tokens between a checkpoint and the next one above, which a hit computes without it (Marconi's
    measure). They stand for floating-point operations: all but attention's are the same for every token. Branches are
    those that would resume there, so that what has a deeper checkpoint on every branch promises nothing. Age is the
    place in the order of use, the newest one's being 1: if nobody came for a while, it may be twice as long until
    somebody does.

    Args:
        nbytes: bytes of a checkpoint in each tier.
    """

    def __init__(self, nbytes: Mapping[ResidentTier, int]) -> None:
        super().__init__()
        self._nbytes = nbytes

    def oldest(self, may_go: Callable[[Checkpoint], bool]) -> Checkpoint | None:
        """First to go of those that ``may_go``, or None. O(checkpoints and the nodes around them)."""
        candidates = [checkpoint for checkpoint in self if may_go(checkpoint)]
        first, least = None, 0.0
        for age, checkpoint in zip(range(len(candidates), 0, -1), candidates, strict=True):
            promise = self._saved(checkpoint) / age
            if first is None or promise < least:
                first, least = checkpoint, promise
            if not promise:
                break
        return first

    def _saved(self, checkpoint: Checkpoint) -> float:
        """Tokens for each byte, over all branches."""
        above, branches = standing_of(checkpoint)
        return (checkpoint.header.depth - above) * branches / self._nbytes[checkpoint.tier]
