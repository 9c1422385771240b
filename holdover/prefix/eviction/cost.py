"""Keep what promises to save the most computation, the less so the longer nobody has used it."""

from __future__ import annotations

from holdover.prefix.eviction.ranked import Ranked
from holdover.store import Checkpoint


class CostAware(Ranked):
    """The first to go promises the least: tokens saved × branches ÷ age; the least recently used of equals.

    Saved are the tokens between a checkpoint and the next one above, which a hit computes without it (Marconi's
    measure). They stand for floating-point operations: all but attention's are the same for every token. Bytes, by
    which Marconi divides them, are the same for all: of one tier by nature, and a dense checkpoint that gives way is
    packed. Branches are those that would resume there, so that what has a deeper checkpoint on every branch promises
    nothing. Age is the place in the order of use, the newest one's being 1: if nobody came for a while, it may be
    twice as long until somebody does.
    """

    def gain(self, checkpoint: Checkpoint) -> int:
        """Tokens saved on all branches."""
        return checkpoint.saved * checkpoint.branches

    def worth(self, gain: int, age: int) -> float:
        """Its promise."""
        return gain / age
