"""A model that keeps the whole distributions of the sequence that it runs: requests report a few tokens of each."""

from __future__ import annotations

import torch

from holdover.engine.host import Host, WrappedHost
from holdover.engine.step import Step


class Listener(WrappedHost):
    """Runs another model, and keeps the logits at some positions.

    For an engine that runs one sequence at a time and captures no graphs. Positions that are run again, as behind a
    draft that was rejected, are kept as they were run last.

    Args:
        host: the model.
    """

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._wanted = range(0)
        self._heard: dict[int, torch.Tensor] = {}

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
        out = super().forward(tokens, positions, step, logits)
        for place, found in zip(positions[0, -out.shape[1] :].tolist(), out[0], strict=True):
            if place in self._wanted:
                self._heard[place] = found.float().cpu()
        return out
