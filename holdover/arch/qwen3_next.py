"""Qwen3-Next: gated delta networks and gated attention as in Qwen3.5, with other fused projections; files only."""

from __future__ import annotations

from functools import partial

from holdover.arch.architecture import Architecture, DecayNames, Gate
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
    hosted=False,
)
