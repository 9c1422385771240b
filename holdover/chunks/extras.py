"""What is kept of a chunk beyond its KV rows and its end state, for those who ask for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from holdover.arch.layout import DTYPE_BYTES, RecurrentLayer, StateLayout
from holdover.chunks.transition import Affine, Inputs, affine, product, tokens_of, transition_numel

_FLOAT = DTYPE_BYTES["float32"]


@dataclass(frozen=True)
class ChunkOptions:
    """Which extras are kept of every chunk.

    Attributes:
        transitions: the transition of the whole chunk, for exact composition (LinearKV, Eq. 6).
        bodies: the map of all but the chunk's first tokens, for composition whose seams are run again.
        inputs: every token's conv inputs, so that recomputed tokens can see their true predecessors.
    """

    transitions: bool = False
    bodies: bool = False
    inputs: bool = False


class LayerTaps(NamedTuple):
    """What one recurrent layer was given while the chunk was prefilled.

    Attributes:
        conv: inputs of its convolution ``[n, channels]``.
        recurrence: inputs of its recurrence by name ``[n, ...]``, parameters as they are.
    """

    conv: Tensor
    recurrence: Inputs


@dataclass(frozen=True, eq=False)
class Extras:
    """Per recurrent layer, by its index; what the options leave out is empty.

    Attributes:
        transitions: of the whole chunk (see `holdover.chunks.transition`).
        bodies: map of the tokens from `seam_length` on: their conv windows lie within the chunk, so that it is the same
            wherever the chunk stands, as far as the layer's inputs are.
        inputs: conv inputs ``[n, channels]`` in the conv state's dtype.
    """

    transitions: Mapping[int, Tensor] = field(default_factory=dict)
    bodies: Mapping[int, Affine] = field(default_factory=dict)
    inputs: Mapping[int, Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, layout: StateLayout, options: ChunkOptions, taps: Mapping[int, LayerTaps]) -> Extras:
        """Make them from what a prefill of the chunk alone gave to its recurrent layers; copies what it keeps."""
        dtype, seam = getattr(torch, layout.conv_dtype), seam_length(layout)
        transitions, bodies = {}, {}
        if options.transitions or options.bodies:
            for layer in layout.layers:
                bodies[layer.index], transitions[layer.index] = _cut(layer, taps[layer.index].recurrence, seam)
        return cls(
            transitions if options.transitions else {},
            bodies if options.bodies else {},
            {i: tap.conv.to(dtype, copy=True) for i, tap in taps.items()} if options.inputs else {},
        )

    @staticmethod
    def bytes_for(layout: StateLayout, options: ChunkOptions, tokens: int) -> int:
        """Exact bytes that the extras of a chunk of ``tokens`` take."""
        transitions = sum(transition_numel(layer) for layer in layout.layers) * _FLOAT
        offsets = sum(layer.temporal_numel for layer in layout.layers) * _FLOAT
        inputs = tokens * sum(layer.conv_channels for layer in layout.layers) * DTYPE_BYTES[layout.conv_dtype]
        parts = {"transitions": transitions, "bodies": transitions + offsets, "inputs": inputs}
        return sum(size for name, size in parts.items() if getattr(options, name))

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        pairs = [tensor for body in self.bodies.values() for tensor in body]
        return sum(t.numel() * t.element_size() for t in (*self.transitions.values(), *pairs, *self.inputs.values()))


def seam_length(layout: StateLayout) -> int:
    """First tokens of a chunk whose conv windows reach before it."""
    return max(layer.conv_width for layer in layout.layers) - 1


def _cut(layer: RecurrentLayer, inputs: Inputs, seam: int) -> tuple[Affine, Tensor]:
    """A layer's body, and its transition over the whole chunk."""
    head = affine(layer, tokens_of(inputs, slice(0, seam)))
    body = affine(layer, tokens_of(inputs, slice(seam, None)))
    return body, product(body.transition, head.transition)
