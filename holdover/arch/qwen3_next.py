"""Qwen3-Next: gated delta networks and gated attention as in Qwen3.5, with other fused projections.

The fused projections stand key head by key head, queries, keys, values and gates of a head side by side, which the
coupled tensors of this interface cannot say; none are declared."""

from __future__ import annotations

from functools import partial

from holdover.arch.architecture import Architecture, CoupledTensor, DecayNames, Gate
from holdover.arch.gdn import HEADS, KEYS, VALUES
from holdover.arch.qwen3_5 import read_gdn_layout

_NAME = "qwen3_next"

ARCHITECTURE = Architecture(
    name=_NAME,
    model_types=("qwen3_next",),
    classes=("Qwen3NextForCausalLM",),
    read_layout=partial(read_gdn_layout, _NAME),
    read_gate=lambda fields: Gate(),
    prefixes=("model.layers.{i}.",),
    published=DecayNames("linear_attn.A_log", "linear_attn.dt_bias"),
    loaded=DecayNames("linear_attn.A_log", "linear_attn.dt_bias"),
    coupled=(
        CoupledTensor("linear_attn.A_log", 0, (HEADS,)),
        CoupledTensor("linear_attn.dt_bias", 0, (HEADS,)),
        CoupledTensor("linear_attn.in_proj_qkvz.weight", 0, (KEYS, KEYS, VALUES, VALUES), by_key_head=True),
        CoupledTensor("linear_attn.in_proj_ba.weight", 0, (HEADS, HEADS), by_key_head=True),
        CoupledTensor("linear_attn.conv1d.weight", 0, (KEYS, KEYS, VALUES)),
        CoupledTensor("linear_attn.out_proj.weight", 1, (VALUES,)),
    ),
)
