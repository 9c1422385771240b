"""A model whose forwards run on all ranks or end the engine."""

from __future__ import annotations

import torch

from holdover.engine.host import Host, WrappedHost
from holdover.engine.parallel.ranks import Ranks
from holdover.engine.step import Step


class JointHost(WrappedHost):
    """A host that sums over ranks. A forward that fails on one rank leaves the others in the middle of theirs.

    Args:
        host: this rank's part of the model.
        ranks: the group.
    """

    def __init__(self, host: Host, ranks: Ranks) -> None:
        super().__init__(host)
        self._ranks = ranks

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor, step: Step, logits: int | None) -> torch.Tensor:
        """As `Host.forward`.

        Raises:
            RanksLostError: it failed, here or on another rank.
        """
        with self._ranks.together("a forward"):
            return super().forward(tokens, positions, step, logits)
