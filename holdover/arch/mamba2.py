"""Mamba-2 as the hosts of every architecture with it keep it: sizes, step limits, parameters coupled to heads."""

from __future__ import annotations

import math
from typing import Any

from holdover.arch.architecture import CoupledTensor, DecayNames, Gate, Segment
from holdover.arch.common import divided
from holdover.arch.fields import Fields
from holdover.arch.layout import RecurrentLayer

# B and C stand in groups, which play the part of key heads; x, z and dt in heads
_GROUPS, _VALUES, _HEADS = Segment("key", "d_k"), Segment("value", "d_v"), Segment("value", "one")
_CONV = (_VALUES, _GROUPS, _GROUPS)
# decay parameters below the mixer
DECAY = DecayNames("A_log", "dt_bias")


def mamba2_layer(
    index: int, *, heads: int, groups: int, d_state: int, head_dim: int, conv_width: int
) -> RecurrentLayer:
    """Layer ``index``: a convolution over values, B and C, and a state of ``d_state`` by ``head_dim`` a head."""
    return RecurrentLayer(
        index=index,
        family="mamba2",
        heads=heads,
        key_heads=groups,
        d_k=d_state,
        d_v=head_dim,
        unit="head",
        conv_channels=heads * head_dim + 2 * groups * d_state,
        conv_width=conv_width,
    )


def read_mamba2_layer(fields: Fields, index: int) -> RecurrentLayer:
    """Layer ``index`` with its sizes from ``mamba_*`` keys, as Bamba, Falcon-H1 and Granite name them."""
    heads, groups = fields.integer("mamba_n_heads"), fields.integer("mamba_n_groups")
    divided(fields, ("mamba_n_heads", heads), ("mamba_n_groups", groups))
    return mamba2_layer(
        index,
        heads=heads,
        groups=groups,
        d_state=fields.integer("mamba_d_state"),
        head_dim=_head_dim(fields, heads),
        conv_width=fields.integer("mamba_d_conv", minimum=2),
    )


def _head_dim(fields: Fields, heads: int) -> int:
    """Head dimension P, given or ``auto``; heads times P must be the inner width."""
    if fields.has("mamba_d_ssm"):
        inner, said = fields.integer("mamba_d_ssm"), "mamba_d_ssm"
    else:
        inner, said = fields.integer("mamba_expand") * fields.integer("hidden_size"), "mamba_expand * hidden_size"
    if inner % heads:
        raise fields.invalid(("mamba_n_heads",), heads, f"a divisor of {said}, which is {inner}")
    if fields.get("mamba_d_head") in (None, "auto"):
        return inner // heads
    width = fields.integer("mamba_d_head")
    if heads * width != inner:
        raise fields.invalid(("mamba_d_head",), width, f"{inner // heads}, or auto ({said} / heads)")
    return width


def limited_gate(fields: Fields) -> Gate:
    """The gate with its step sizes between the two numbers of ``time_step_limit``."""
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


def floored_gate(fields: Fields, *names: str, default: float) -> Gate:
    """The gate whose step sizes have a floor under the first of ``names`` that is set, and no ceiling."""
    floor = fields.number(*names, default=default)
    if floor < 0:
        raise fields.invalid(names, floor, "a number of at least 0")
    return Gate(dt_min=floor)


def coupled_tensors(mixer: str, *, norm_optional: bool = False) -> tuple[CoupledTensor, ...]:
    """Parameters coupled to heads.

    Args:
        mixer: what the mixer's parameters begin with below the layer's prefix.
        norm_optional: whether a model may do without the norm of its readouts.
    """
    return (
        CoupledTensor(f"{mixer}A_log", 0, (_HEADS,)),
        CoupledTensor(f"{mixer}dt_bias", 0, (_HEADS,)),
        CoupledTensor(f"{mixer}D", 0, (_HEADS,)),
        CoupledTensor(f"{mixer}in_proj.weight", 0, (_VALUES, *_CONV, _HEADS)),
        CoupledTensor(f"{mixer}in_proj.bias", 0, (_VALUES, *_CONV, _HEADS), optional=True),
        CoupledTensor(f"{mixer}conv1d.weight", 0, _CONV),
        CoupledTensor(f"{mixer}conv1d.bias", 0, _CONV, optional=True),
        CoupledTensor(f"{mixer}norm.weight", 0, (_VALUES,), optional=norm_optional),
        CoupledTensor(f"{mixer}out_proj.weight", 1, (_VALUES,)),
    )
