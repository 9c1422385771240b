"""Finding cached state again: a radix tree over token ids, and when to take checkpoints."""

from holdover.prefix.cache import PrefixCache
from holdover.prefix.hold import Hold, Match, Opened
from holdover.prefix.integrity import check_integrity

__all__ = ["Hold", "Match", "Opened", "PrefixCache", "check_integrity"]
