"""Keep what saves the most computation for its bytes, weighed against how lately it was used (after Marconi)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from holdover.prefix.eviction.standing import standing_of
from holdover.store import LRU, Checkpoint, ResidentTier


class CostAware(LRU[Checkpoint]):
    """The first to go has the least sum of two numbers, each scaled to 0..1 over all that may go.

    One is its place in the order of use, the other the tokens that a hit saves over one at the next checkpoint above,
    for each byte. Tokens stand for their floating-point operations: all but attention's are the same for every token.

    Args:
        nbytes: bytes of a checkpoint in each tier.
    """

    def __init__(self, nbytes: Mapping[ResidentTier, int]) -> None:
        super().__init__()
        self._nbytes = nbytes

    def oldest(self, may_go: Callable[[Checkpoint], bool]) -> Checkpoint | None:
        """First to go of those that ``may_go``, or None. O(checkpoints and the nodes above them)."""
        candidates = [checkpoint for checkpoint in self if may_go(checkpoint)]
        if len(candidates) < 2:
            return next(iter(candidates), None)
        saved = [self._saved(checkpoint) for checkpoint in candidates]
        least, span = min(saved), max(saved) - min(saved) or 1.0
        last = len(candidates) - 1
        scores = [place / last + (value - least) / span for place, value in enumerate(saved)]
        return candidates[scores.index(min(scores))]

    def _saved(self, checkpoint: Checkpoint) -> float:
        return (checkpoint.header.depth - standing_of(checkpoint).above) / self._nbytes[checkpoint.tier]
