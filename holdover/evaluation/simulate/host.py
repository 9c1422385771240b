"""A model that computes nothing: it says that every layer was written, and lets a clock pass.

Its pools are on torch's meta device. They have the shapes and the byte counts of real ones and no memory, so the
engine's loop, its tree, its tiers and their evictions run on them as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from holdover.arch.layout import ModelLayout
from holdover.engine.decode.decoder import Decoded, DecodeStats
from holdover.engine.step import Advance, Span, Step
from holdover.evaluation.simulate.costs import Costs, pairs_of

_META = torch.device("meta")


class Clock:
    """Virtual time.

    Attributes:
        ms: milliseconds since the simulation began.
    """

    def __init__(self) -> None:
        self.ms = 0.0


class SimulatedHost:
    """Stands for a model.

    Args:
        layout: the model's layout, in the dtype it runs in.
        costs: what its forwards cost.
        clock: what they advance.
    """

    head = None
    rope_parameters: Mapping[str, Any] | None = None
    device = _META

    def __init__(self, layout: ModelLayout, costs: Costs, clock: Clock) -> None:
        self.layout = layout
        self._costs = costs
        self._clock = clock

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor, step: Step, logits: int | None) -> torch.Tensor:
        """Let the time of a prefill or a replay pass; logits are zeros ``[B, n, 1]`` on the CPU."""
        batch, count = tokens.shape
        ends = [len(rows) for rows in step.rows]
        pairs = sum(pairs_of(end - count, count) for end in ends)
        self._clock.ms += self._costs.prefill.ms(batch * count, pairs)
        layers = {layer.index for layer in self.layout.state.layers}
        step.convolved |= layers
        step.advanced |= layers
        step.appended |= {layer.index for layer in self.layout.kv.layers}
        return torch.zeros(batch, count if logits is None else logits, 1)


class SimulatedDecoder:
    """The same for decode steps.

    Args:
        host: whose layers are said to be written.
        costs: what a step costs.
        clock: what it advances.
    """

    nbytes = 0

    def __init__(self, host: SimulatedHost, costs: Costs, clock: Clock) -> None:
        self.stats = DecodeStats()
        self._costs = costs
        self._clock = clock
        self._advanced = {layer.index for layer in host.layout.state.layers}
        self._appended = {layer.index for layer in host.layout.kv.layers}

    def warm_up(self) -> None:
        """Nothing is slow at first."""

    def run(self, spans: Sequence[Span], advance: Advance) -> Decoded:
        """Let the time of one step of all spans pass."""
        self._clock.ms += self._costs.decode.ms(len(spans), sum(span.end for span in spans))
        return Decoded(torch.zeros(len(spans), 1, 1), self._advanced, self._appended)
