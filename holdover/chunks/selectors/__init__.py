"""Which tokens of reused chunks are recomputed: one selector a file."""

from collections.abc import Callable

from holdover.chunks.selectors.all import All
from holdover.chunks.selectors.cacheblend import CacheBlend
from holdover.chunks.selectors.context import Deviation, Probe, QueryAttention, SelectionContext, Selector
from holdover.chunks.selectors.epic import Epic
from holdover.chunks.selectors.none import Nothing
from holdover.chunks.selectors.prophetkv import ProphetKV
from holdover.chunks.selectors.seam import Seam

# by the name that a caller gives
SELECTORS: dict[str, Callable[..., Selector]] = {
    "all": All,
    "cacheblend": CacheBlend,
    "epic": Epic,
    "none": Nothing,
    "prophetkv": ProphetKV,
    "seam": Seam,
}

__all__ = [
    "SELECTORS",
    "All",
    "CacheBlend",
    "Deviation",
    "Epic",
    "Nothing",
    "Probe",
    "ProphetKV",
    "QueryAttention",
    "Seam",
    "SelectionContext",
    "Selector",
]
