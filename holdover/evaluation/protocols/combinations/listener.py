"""A model that keeps the whole distributions of the sequence that it runs: requests report a few tokens of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from holdover.engine.host import DraftHead, Host
from holdover.engine.step import Step


class Listener:
    """Runs another model, and keeps the logits at some positions.

    For an engine that runs one sequence at a time and captures no graphs. Positions that are run again, as behind a
    draft that was rejected, are kept as they were run last.

    Args:
        host: the model.
    """

    def __init__(self, host: Host) -> None:
        self.layout = host.layout
        self._host = host
        self._wanted = range(0)
        self._heard: dict[int, torch.Tensor] = {}

    @property
    def head(self) -> DraftHead | None:
        """The model's head."""
        return self._host.head

    @property
    def rope_parameters(self) -> Mapping[str, Any] | None:
        """Those of the model."""
        return self._host.rope_parameters

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self._host.device

    def want(self, positions: range) -> None:
        """Keep logits at these positions from now on, and none of those kept before."""
        self._wanted, self._heard = positions, {}

    def heard(self) -> torch.Tensor:
        """Logits at every position that is wanted, fp32 ``[positions, vocabulary]`` on the CPU.

        Raises:
            KeyError: one was not run.
        """
        return torch.stack([self._heard[place] for place in self._wanted])

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor, step: Step, logits: int | None) -> torch.Tensor:
        """Run the model; see `Host.forward`."""
        out = self._host.forward(tokens, positions, step, logits)
        for place, found in zip(positions[0, -out.shape[1] :].tolist(), out[0], strict=True):
            if place in self._wanted:
                self._heard[place] = found.float().cpu()
        return out
