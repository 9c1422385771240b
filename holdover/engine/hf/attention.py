"""Attention of Transformers' models over Holdover's KV rows, through the public attention interface."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface

from holdover.arch.layout import AttentionLayer
from holdover.engine.step import Step

NAME = "holdover"


def attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    step: Step,
    scaling: float,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attend to every cached row up to each token's own.

    Args:
        module: the attention module.
        query: ``[B, Hq, T, D]``, rotated already.
        key: this forward's keys; not used, since their rows are in the pool.
        value: this forward's values; not used.
        attention_mask: None; which rows are visible follows from the step.
        step: the forward in progress.
        scaling: factor on the scores.

    Returns:
        Output ``[B, T, Hq, d_v]`` and no weights.
    """
    layer = step.kv_pool.layer(step.layer)
    query = query.transpose(1, 2)  # [B, T, Hq, D]
    if step.tap is not None:
        step.tap(step.layer, "scale", query.new_tensor(scaling))
    if layer.kind == "latent":
        out = _attend_latent(module, layer, query, step, scaling)
    else:
        if step.tap is not None:
            step.tap(step.layer, "queries", query)
        out = step.attend(query, scaling)
    if step.tap is not None:
        step.tap(step.layer, "attended", out)
    return out, None


def register() -> None:
    """Make the implementation known to Transformers under `NAME`."""
    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, lambda *_, **__: None)


def _attend_latent(module: Any, layer: AttentionLayer, query: torch.Tensor, step: Step, scaling: float) -> torch.Tensor:
    # the up-projection [H * (d_nope + d_v), latent] is absorbed into query and output
    up = module.kv_b_proj.weight.view(layer.query_heads, -1, layer.d_k)
    q_nope, q_rope = query.split([query.shape[-1] - layer.d_v, layer.d_v], dim=-1)
    w_k, w_v = up.split([q_nope.shape[-1], up.shape[1] - q_nope.shape[-1]], dim=1)
    if step.tap is not None:
        absorbed = torch.einsum("bthn,hnc->bthc", q_nope, w_k)
        step.tap(step.layer, "queries", torch.cat([absorbed, q_rope], dim=-1))
    return step.attend_latent(q_nope, q_rope, w_k, w_v, scaling)
