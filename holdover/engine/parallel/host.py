"""A model whose forwards run on all ranks or end the engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from holdover.arch.layout import ModelLayout
from holdover.engine.host import DraftHead, Host
from holdover.engine.parallel.ranks import Ranks
from holdover.engine.step import Step


class JointHost:
    """A host that sums over ranks. A forward that fails on one rank leaves the others in the middle of theirs.

    Args:
        host: this rank's part of the model.
        ranks: the group.
    """

    def __init__(self, host: Host, ranks: Ranks) -> None:
        self._host, self._ranks = host, ranks
        self.layout: ModelLayout = host.layout

    @property
    def head(self) -> DraftHead | None:
        """Its head for drafts."""
        return self._host.head

    @property
    def rope_parameters(self) -> Mapping[str, Any] | None:
        """Parameters of its rotary embedding."""
        return self._host.rope_parameters

    @property
    def device(self) -> torch.device:
        """Where this rank's part is."""
        return self._host.device

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor, step: Step, logits: int | None) -> torch.Tensor:
        """As `Host.forward`.

        Raises:
            RanksLostError: it failed, here or on another rank.
        """
        with self._ranks.together("a forward"):
            return self._host.forward(tokens, positions, step, logits)
