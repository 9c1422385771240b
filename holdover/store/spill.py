"""What is spilled below the resident tiers, and what every place that takes it offers.

An entry is a packed checkpoint with the KV rows above the entry that it continues, so that a conversation of many
turns stores every row once. Entries are found by depth and chained key: the key names model, tenant and tokens, and
no token ids are stored.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

import torch

from holdover.state import CheckpointHeader, Lineage


@dataclass(frozen=True)
class EntryName:
    """Where an entry stands in the chain of its tokens.

    Attributes:
        depth: tokens that its state has seen.
        key: chained key of those tokens.
        parent_depth: depth of the entry that it continues; 0 for none.
        parent_key: that entry's key; at depth 0 the key of no tokens in the namespace.
        losses: lossy restores in the past of its state or its rows; fewer are better at the same key.
    """

    depth: int
    key: bytes
    parent_depth: int
    parent_key: bytes
    losses: int = 0


@dataclass(frozen=True, eq=False)
class Entry:
    """A packed checkpoint and its KV rows, in host memory.

    Attributes:
        name: its place in the chain.
        header: the checkpoint's header, codec and plan included; depth and key are the name's.
        kv_lineage: how the rows came to be.
        state: the packed state, uint8 ``[codec.nbytes]``.
        kv: the rows of tokens ``parent_depth .. depth - 1``, uint8 ``[depth - parent_depth, bytes_per_token]``.
    """

    name: EntryName
    header: CheckpointHeader
    kv_lineage: Lineage
    state: torch.Tensor
    kv: torch.Tensor

    @property
    def nbytes(self) -> int:
        """Bytes of state and rows."""
        return self.state.numel() + self.kv.numel()


class Shelf(Protocol):
    """A place for entries below the resident tiers, bounded in bytes. Safe to call from several threads."""

    @property
    def tier(self) -> str:
        """Its name in reports: ``host`` or ``disk``."""

    def depths(self) -> Collection[int]:
        """Depths at which any entry stands."""

    def find(self, depth: int, key: bytes) -> EntryName | None:
        """The best entry of exactly these tokens, or None. Reads nothing of its bytes."""

    def put(self, entry: Entry) -> bool:
        """Keep an entry, evicting the least recently used ones that none continues to stay within the budget.

        It replaces a worse entry (more losses) of the same key and is refused in favour of an equal or better one.

        Returns:
            Whether the entry, or one at least as good, is kept; False if the budget cannot hold it.

        Raises:
            SpillError: it could not be written; what was there before is unchanged.
        """

    def get(self, name: EntryName, *, with_state: bool = True) -> Entry:
        """Read an entry back and make it and all that it continues the most recently used.

        Args:
            name: what `find` returned, or the parent of an entry.
            with_state: False to read the rows only (``state`` is then empty): what a deeper entry continues is
                needed for its rows alone.

        Raises:
            SpillError: it is gone, damaged or another's; a damaged entry is removed.
        """
