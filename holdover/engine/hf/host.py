"""A Transformers model as the runner sees it: token ids in, logits out, state and KV in Holdover's pools."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from transformers import PreTrainedModel

from holdover.arch.layout import ModelLayout
from holdover.engine.hf import attention, linears, mlps, norms
from holdover.engine.hf.mixers import MIXERS, check_runnable, install
from holdover.engine.hf.mixers.base import Total
from holdover.engine.host import DraftHead
from holdover.engine.step import Step


class _NoMask(dict[str, None]):
    """Mask mapping that has no mask for any kind of layer, whatever a version calls the kinds."""

    def __missing__(self, key: str) -> None:
        return None


class HostModel:
    """A loaded model whose recurrent mixers and attention run on Holdover's ops.

    Args:
        model: a causal language model in eval mode, in its final dtype and place; it is changed in place and can no
            longer be run by itself.
        layout: its layout.
        total: sums the outputs of recurrent layers over the ranks that share their heads; None where they are whole.

    Raises:
        UnsupportedArchitectureError: there is no mixer for its recurrent layers.
    """

    def __init__(self, model: PreTrainedModel, layout: ModelLayout, total: Total | None = None) -> None:
        check_runnable(layout)
        attention.register()
        model.set_attn_implementation(attention.NAME)
        install(model, [layer.index for layer in layout.state.layers], MIXERS, total)
        norms.install(model)
        mlps.install(model)
        linears.install(model)
        self.model: Any = model.eval().requires_grad_(False)
        self.layout = layout
        self.head: DraftHead | None = None
        self.forwards = 0
        self._hidden: torch.Tensor | None = None
        # 5.24 renamed the keyword
        parameters = inspect.signature(inspect.unwrap(type(model).forward)).parameters
        self.cache_keyword = "cache" if "cache" in parameters else "past_key_values"

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        device: torch.device = self.model.device
        return device

    @property
    def rope_parameters(self) -> Mapping[str, Any] | None:
        """Parameters of its rotary embedding."""
        parameters: Mapping[str, Any] | None = getattr(self.model.config, "rope_parameters", None)
        return parameters

    def attach(self, head: DraftHead, layout: ModelLayout) -> None:
        """Add a head: from now on steps carry final hidden states. ``layout`` is the model's with the head's KV."""
        self.head, self.layout = head, layout
        self.model.model.norm.register_forward_hook(self._keep)

    def _keep(self, _module: Any, _inputs: Any, hidden: torch.Tensor) -> None:
        self._hidden = hidden

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor, step: Step, logits: int | None) -> torch.Tensor:
        """Run one forward.

        Args:
            tokens: ids, int64 ``[B, T]``.
            positions: their positions, int64 ``[B, T]``.
            step: where state and KV live.
            logits: how many last positions to compute logits for; None for all.

        Returns:
            Logits ``[B, n, vocabulary]`` in the model's dtype.
        """
        self.forwards += 1
        out = self.model(
            input_ids=tokens,
            position_ids=positions,
            attention_mask=_NoMask(),
            use_cache=True,
            logits_to_keep=logits or 0,
            step=step,
            **{self.cache_keyword: step},
        )
        # not kept here: it would outlive the forward
        step.hidden, self._hidden = self._hidden, None
        result: torch.Tensor = out.logits
        return result
