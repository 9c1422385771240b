"""A Transformers model as the runner sees it: token ids in, logits out, state and KV in Holdover's pools."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from transformers import PreTrainedModel

from holdover.arch.layout import ModelLayout
from holdover.engine.hf import attention, norms
from holdover.engine.hf.mixers import MIXERS, check_runnable, install
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

    Raises:
        UnsupportedArchitectureError: there is no mixer for its recurrent layers.
    """

    def __init__(self, model: PreTrainedModel, layout: ModelLayout) -> None:
        check_runnable(layout)
        attention.register()
        model.set_attn_implementation(attention.NAME)
        install(model, [layer.index for layer in layout.state.layers], MIXERS)
        norms.install(model)
        self.model: Any = model.eval().requires_grad_(False)
        self.layout = layout
        self.forwards = 0
        # 5.24 renamed the keyword
        parameters = inspect.signature(inspect.unwrap(type(model).forward)).parameters
        self._cache_keyword = "cache" if "cache" in parameters else "past_key_values"

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        device: torch.device = self.model.device
        return device

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
            **{self._cache_keyword: step},
        )
        result: torch.Tensor = out.logits
        return result
