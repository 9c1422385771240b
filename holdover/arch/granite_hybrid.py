"""Granite 4.0 hybrids: Mamba-2 layers and grouped-query attention, by default without positions."""

from __future__ import annotations

import math
from typing import Any

from holdover.arch.architecture import Architecture, CoupledTensor, DecayNames, Gate, Segment
from holdover.arch.common import LayerKind, assemble, divided, indices, listed_kinds, read_rotary
from holdover.arch.fields import Fields
from holdover.arch.layout import AttentionLayer, ModelLayout, RecurrentLayer, Rotary
from holdover.errors import ConfigError

_NAME = "granite_hybrid"
# B and C stand in groups, which play the part of key heads; x, z and dt in heads
_GROUPS, _VALUES, _HEADS = Segment("key", "d_k"), Segment("value", "d_v"), Segment("value", "one")
_CONV = (_VALUES, _GROUPS, _GROUPS)


def _read_layout(fields: Fields, published: str, host: str) -> ModelLayout:
    kinds = _kinds(fields)
    recurrent = [_recurrent(fields, index) for index in indices(kinds, "recurrent")]
    attention = [_attention(fields, index) for index in indices(kinds, "attention")]
    return assemble(_NAME, fields, (published, host), recurrent, attention)


def _kinds(fields: Fields) -> tuple[LayerKind, ...]:
    kinds = listed_kinds(fields, "layer_types", "layers_block_type")
    if kinds is None:
        raise ConfigError("config: layer_types (or layers_block_type) is missing; wanted one entry per layer")
    return kinds


def _recurrent(fields: Fields, index: int) -> RecurrentLayer:
    heads, groups = fields.integer("mamba_n_heads"), fields.integer("mamba_n_groups")
    divided(fields, ("mamba_n_heads", heads), ("mamba_n_groups", groups))
    inner = fields.integer("mamba_expand") * fields.integer("hidden_size")
    state = fields.integer("mamba_d_state")
    return RecurrentLayer(
        index=index,
        family="mamba2",
        heads=heads,
        key_heads=groups,
        d_k=state,
        d_v=_head_dim(fields, inner, heads),
        unit="head",
        conv_channels=inner + 2 * groups * state,
        conv_width=fields.integer("mamba_d_conv", minimum=2),
    )


def _head_dim(fields: Fields, inner: int, heads: int) -> int:
    """Head dimension P, given or ``auto``; heads times P must be expand times hidden size."""
    if inner % heads:
        raise fields.invalid(("mamba_n_heads",), heads, f"a divisor of mamba_expand * hidden_size, which is {inner}")
    if fields.get("mamba_d_head") in (None, "auto"):
        return inner // heads
    width = fields.integer("mamba_d_head")
    if heads * width != inner:
        raise fields.invalid(
            ("mamba_d_head",), width, f"{inner // heads}, or auto (mamba_expand * hidden_size / heads)"
        )
    return width


def _attention(fields: Fields, index: int) -> AttentionLayer:
    query_heads = fields.integer("num_attention_heads")
    heads = fields.integer("num_key_value_heads", default=query_heads)
    divided(fields, ("num_attention_heads", query_heads), ("num_key_value_heads", heads))
    if not fields.has("head_dim"):
        divided(fields, ("hidden_size", fields.integer("hidden_size")), ("num_attention_heads", query_heads))
    head_dim = fields.integer("head_dim", default=fields.integer("hidden_size") // query_heads)
    return AttentionLayer(index, "heads", heads, head_dim, head_dim, query_heads, _rotary(fields, head_dim))


def _rotary(fields: Fields, head_dim: int) -> Rotary | None:
    kind = fields.text("position_embedding_type", default="nope")
    if kind not in ("nope", "rope"):
        raise fields.invalid(("position_embedding_type",), kind, "rope, nope or null")
    return read_rotary(fields, head_dim) if kind == "rope" else None


def _read_gate(fields: Fields) -> Gate:
    if not fields.has("time_step_limit"):
        return Gate()
    limit = fields.sequence("time_step_limit")
    numbers = [_unwrapped(value) for value in limit]
    sound = len(numbers) == 2 and all(isinstance(n, int | float) and not isinstance(n, bool) for n in numbers)
    if not sound or not 0 <= numbers[0] < numbers[1]:
        raise fields.invalid(("time_step_limit",), limit, "two numbers, the lower one at least 0")
    return Gate(dt_min=float(numbers[0]), dt_max=float(numbers[1]))


def _unwrapped(value: Any) -> Any:
    """Infinity, which the host writes as an object because JSON has none."""
    return math.inf if value == {"__float__": "Infinity"} else value


ARCHITECTURE = Architecture(
    name=_NAME,
    model_types=("granitemoehybrid",),
    classes=("GraniteMoeHybridForCausalLM",),
    read_layout=_read_layout,
    read_gate=_read_gate,
    prefixes=("model.layers.{i}.",),
    published=DecayNames("mamba.A_log", "mamba.dt_bias"),
    loaded=DecayNames("mamba.A_log", "mamba.dt_bias"),
    coupled=(
        CoupledTensor("mamba.A_log", 0, (_HEADS,)),
        CoupledTensor("mamba.dt_bias", 0, (_HEADS,)),
        CoupledTensor("mamba.D", 0, (_HEADS,)),
        CoupledTensor("mamba.in_proj.weight", 0, (_VALUES, *_CONV, _HEADS)),
        CoupledTensor("mamba.conv1d.weight", 0, _CONV),
        CoupledTensor("mamba.conv1d.bias", 0, _CONV),
        CoupledTensor("mamba.norm.weight", 0, (_VALUES,)),
        CoupledTensor("mamba.out_proj.weight", 1, (_VALUES,)),
    ),
)
