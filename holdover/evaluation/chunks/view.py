"""What a workbench holds of one case: the context as computed in full, and as composed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from holdover.chunks import Assembly, ChunkEntry
from holdover.engine.runner import Runner
from holdover.store import StateTiers

# most tokens of one forward
MOST = 1024


@dataclass(frozen=True)
class Side:
    """One way to have computed a context.

    Attributes:
        slot: the state behind its last token.
        rows: KV row of every position of the prompt, int64; those of the query and behind it are written by whoever
            runs it.
    """

    slot: int
    rows: torch.Tensor


@dataclass(frozen=True)
class View:
    """Both ways, and what they stand on.

    Attributes:
        runner: the model on its pools.
        tiers: where the chunks' states are.
        entries: the prompt's chunks in order.
        assembly: the prompt.
        true: its context in full; not to be written to.
        made: its context as composed last.
        scratch: a slot for whoever needs one.
        work: another.
    """

    runner: Runner
    tiers: StateTiers
    entries: Sequence[ChunkEntry]
    assembly: Assembly
    true: Side
    made: Side
    scratch: int
    work: int
