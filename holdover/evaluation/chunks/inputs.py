"""Exact composition taken apart: which of a chunk's two maps is off, and whether error is carried on or comes anew.

A chunk is the map ``S -> T S + U`` (LinearKV, Eq. 5), and composing such maps is exact. What is off are the maps: they
were made of what the chunk's tokens gave to each layer when they were prefilled alone, not in their context.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from holdover.chunks import Affine, ChunkEntry, ChunkOptions, Placed
from holdover.chunks.transition import affine, carry
from holdover.engine.chunks.prefill import InputTaps
from holdover.engine.step import KVMode, Span
from holdover.evaluation.chunks.view import MOST, View

# of which inputs transitions and offsets are made: of isolated ones, of those in context, or one of each
Source = Literal["isolated", "true", "true-transitions", "true-offsets"]
# whether transitions are true, and whether offsets are
_SOURCES: dict[Source, tuple[bool, bool]] = {
    "isolated": (False, False),
    "true": (True, True),
    "true-transitions": (True, False),
    "true-offsets": (False, True),
}
SOURCES = tuple(_SOURCES)
_MAPS = ChunkOptions(transitions=True)

# by layer
States = dict[int, Tensor]
Maps = dict[int, Affine]


@dataclass(frozen=True)
class Recursion:
    """The last step of ``e_j = T e_{j-1} + delta_j`` (LinearKV, Eq. 7), by layer, relative to the true state.

    Attributes:
        carried: ``|T e_{j-1}|``, what is left of the error before the last chunk; T is that of isolated inputs.
        injected: ``|delta_j|``, what the last chunk's own maps add.
    """

    carried: dict[int, float]
    injected: dict[int, float]


@torch.inference_mode()
def compose_from(view: View) -> tuple[dict[Source, States], Recursion]:
    """Compose the chunks' maps from every source. Mutates two slots to work with, and the composed side's rows.

    Args:
        view: a case without text, its chunks kept with transitions.

    Returns:
        The state behind the context from each source, fp32 ``[H, d_k, d_v]`` a layer, and the last step's errors.
    """
    pool = view.tiers.native.pool
    pool.reset(view.work, b"in context")
    layers = [layer.index for layer in pool.layout.layers]
    states = {source: {i: torch.zeros_like(pool.temporal(i)[view.true.slot]) for i in layers} for source in SOURCES}
    for number, (entry, placed) in enumerate(zip(view.entries, view.assembly.chunks, strict=True), start=1):
        alone, true = _alone(view, entry), _in_context(view, placed)
        if number == len(view.entries):
            gaps = {i: states["isolated"][i] - states["true"][i] for i in layers}
            carried = {i: carry(alone[i].transition, gap) for i, gap in gaps.items()}
        for source, (transitions, offsets) in _SOURCES.items():
            for i, state in states[source].items():
                transition, offset = (true if transitions else alone)[i][0], (true if offsets else alone)[i][1]
                states[source][i] = Affine(transition, offset).apply(state)
    final = states["true"]
    return states, Recursion(
        {i: _share(carried[i], final[i]) for i in layers},
        {i: _share(states["isolated"][i] - final[i] - carried[i], final[i]) for i in layers},
    )


def _alone(view: View, entry: ChunkEntry) -> Maps:
    """As the chunk keeps them."""
    pool = view.tiers.native.pool
    view.tiers.restore(entry.checkpoint, view.scratch, entry.chain)
    return {
        i: Affine(transition, pool.temporal(i)[view.scratch].clone())
        for i, transition in entry.extras.transitions.items()
    }


def _in_context(view: View, placed: Placed) -> Maps:
    """The maps of a chunk that is prefilled behind those before it: on the work slot, which has seen them."""
    taps, rows = InputTaps(_MAPS), view.made.rows
    for start in range(placed.start, placed.stop, MOST):
        stop = min(placed.stop, start + MOST)
        span = Span(view.work, view.assembly.tokens[start:stop], start, rows[:stop])
        view.runner.run([span], kv=KVMode.APPEND, tap=taps)
    layers, found = view.tiers.native.pool.layout.layers, taps.by_layer()
    return {layer.index: affine(layer, found[layer.index].recurrence) for layer in layers}


def _share(part: Tensor, whole: Tensor) -> float:
    norm = float(whole.double().norm())
    return float(part.double().norm()) / norm if norm else 0.0
