"""Conv windows within a composed context: which inputs a token sees before its own, and where they come from.

Tokens that are run leave their inputs in the slot. Between them stand tokens that are not run; their inputs are those
that their chunk was prefilled with. The last ``width - 1`` of a chunk are in its checkpoint, the others are there if
the chunk was kept with `ChunkOptions.inputs`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from holdover.chunks.assembly import Repair
from holdover.chunks.entry import ChunkEntry
from holdover.chunks.extras import seam_length
from holdover.errors import RequestError
from holdover.state import SlotPool
from holdover.store import StateTiers


@dataclass(frozen=True)
class CachedInputs:
    """Conv inputs of tokens that are not run.

    Attributes:
        repair: the plan.
        entries: the prompt's chunks, in order.
        tails: conv state of some chunks, by place in the prompt and layer, ``[width - 1, channels]``.
    """

    repair: Repair
    entries: Sequence[ChunkEntry]
    tails: Mapping[int, Mapping[int, Tensor]]

    @classmethod
    def read(
        cls,
        repair: Repair,
        entries: Sequence[ChunkEntry],
        starts: Iterable[int],
        tiers: StateTiers,
        scratch: int,
    ) -> CachedInputs:
        """Take the tails of those chunks whose end a token at one of ``starts`` can see. Mutates ``scratch``."""
        pool, placed = tiers.native.pool, repair.assembly.chunks
        reach = seam_length(pool.layout)
        seen = {position for start in starts for position in range(start - reach, start)}
        tails = {}
        for i, (start, stop) in enumerate(placed):
            if not entries[i].extras.inputs and seen & set(range(max(start, stop - reach), stop)):
                tiers.restore(entries[i].checkpoint, scratch, entries[i].chain)
                tails[i] = {x.index: pool.conv(x.index)[scratch].clone() for x in pool.layout.layers}
        pool.forget(scratch)
        return cls(repair, entries, tails)

    def at(self, layer: int, position: int) -> Tensor:
        """Input of the token at ``position`` of the prompt, ``[channels]``.

        Raises:
            RequestError: it was not kept.
        """
        i = self.repair.assembly.chunk_at(position)
        start, stop = self.repair.assembly.chunks[i]
        if inputs := self.entries[i].extras.inputs:
            return inputs[layer][position - start]
        tail = self.tails.get(i, {}).get(layer)
        if tail is None or stop - position > len(tail):
            raise RequestError(
                f"token {position - start} of a chunk stands before one that is run again, but its conv inputs were "
                "not kept: keep chunks with their inputs, or let recomputed tokens see each other only",
                param="window",
            )
        return tail[position - stop]


def follow(pool: SlotPool, slot: int, cached: CachedInputs, stop: int, start: int) -> None:
    """Let a slot that has run the tokens up to ``stop`` see the true predecessors of the one at ``start``.

    The tokens between are appended to its conv window, as if they had been run; its temporal state stays. At the
    beginning of the context, with ``stop`` 0, the window is empty whatever the slot holds. Mutates ``slot``.

    Raises:
        RequestError: the inputs of a token between were not kept.
    """
    pool.settle([slot])
    for layer in pool.layout.layers:
        window = pool.conv(layer.index)[slot]
        past = torch.zeros_like(window) if stop == 0 else window
        between = range(max(stop, start - len(window)), start)
        if between:
            past = torch.cat([past, torch.stack([cached.at(layer.index, p) for p in between])])
        window.copy_(past[len(past) - len(window) :])


def rejoin(pool: SlotPool, slot: int, cached: CachedInputs) -> None:
    """Let the query see the context's last tokens, for a slot whose window held the recomputed stream alone.

    Those of them that were run are the last ones in the slot's window. Mutates ``slot``'s conv state.
    """
    pool.settle([slot])
    end, recomputed = cached.repair.assembly.query.start, cached.repair.positions
    for layer in pool.layout.layers:
        window = pool.conv(layer.index)[slot]
        stream = list(window.clone())
        past = []
        for position in range(end - 1, end - 1 - len(window), -1):
            if position < 0:
                past.append(torch.zeros_like(window[0]))
            else:
                past.append(stream.pop() if position in recomputed else cached.at(layer.index, position))
        if past:
            window.copy_(torch.stack(past[::-1]))
