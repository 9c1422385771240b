"""What the engine needs of a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch

from holdover.arch.layout import ModelLayout
from holdover.engine.step import Step


class DraftHead(Protocol):
    """A part of a model that guesses further tokens from its final hidden states."""

    def forward(self, tokens: torch.Tensor, hidden: torch.Tensor, positions: torch.Tensor, step: Step) -> torch.Tensor:
        """Hidden states ``[B, T, hidden]`` of the head, which stand for the model's at the tokens.

        Mutates the head's layer of the step's new rows.

        Args:
            tokens: the token after each position, int64 ``[B, T]``.
            hidden: final hidden states at the positions ``[B, T, hidden]``, the model's or the head's own.
            positions: int64 ``[B, T]``.
            step: where the head's KV lives.
        """

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits ``[..., vocabulary]`` of the token after next, from the head's hidden states."""


class Host(Protocol):
    """A model that runs on Holdover's pools."""

    layout: ModelLayout

    @property
    def head(self) -> DraftHead | None:
        """Its head, if it was loaded with one: then steps carry final hidden states, and the layout the head's KV."""

    @property
    def rope_parameters(self) -> Mapping[str, Any] | None:
        """Parameters of its rotary embedding, as the configuration has them; None for none."""

    @property
    def device(self) -> torch.device:
        """Where the model is."""

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor, step: Step, logits: int | None) -> torch.Tensor:
        """Run ``tokens [B, T]``; logits of the last ``logits`` positions, or of all for None."""


class WrappedHost:
    """A host that is another one but for what a subclass changes.

    Args:
        host: the other one.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self.layout = host.layout

    @property
    def head(self) -> DraftHead | None:
        """See `Host.head`."""
        return self._host.head

    @property
    def rope_parameters(self) -> Mapping[str, Any] | None:
        """See `Host.rope_parameters`."""
        return self._host.rope_parameters

    @property
    def device(self) -> torch.device:
        """See `Host.device`."""
        return self._host.device

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor, step: Step, logits: int | None) -> torch.Tensor:
        """See `Host.forward`."""
        return self._host.forward(tokens, positions, step, logits)
