"""Static retention horizons: how many tokens a unit remembers, from its decay parameters alone (DASC §3.3).

A horizon is the number of tokens after which ``epsilon`` of a unit's content is left, if the gate's input were the same
representative value ``a_s`` at every token (Eq. 3). It ranks units; it does not promise what any one text does to them.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from holdover.arch.architecture import Gate
from holdover.arch.layout import GateForm, RecurrentLayer
from holdover.errors import PlanError

DEFAULT_EPSILON = 1e-3
# a_s by form. §3.3: -0.3 (chosen below 0 to retain more) and 0.8 (chosen on Kimi-K3's observed gates).
# exponential: 0 is what is left when RWKV-6's data-dependent part, a small correction around time_decay, is dropped
DEFAULT_GATE_INPUT: dict[GateForm, float] = {"softplus": -0.3, "bounded": 0.8, "exponential": 0.0}
# horizons are clamped here, far above any context: a decay of exactly one would make them infinite
LONGEST_HORIZON = 2.0**40

# whose default a_s the paper chose and validated on observed gates (§3.4); kimi_linear includes Kimi-K3
_CALIBRATED = frozenset({"qwen3_next", "kimi_linear"})


def is_calibrated(architecture: str) -> bool:
    """Whether `DEFAULT_GATE_INPUT` was validated on models of this registry name; otherwise it is a guess by form."""
    return architecture in _CALIBRATED


def static_horizons(
    a_log: torch.Tensor | None,
    dt_bias: torch.Tensor,
    layer: RecurrentLayer,
    gate: Gate,
    *,
    gate_input: float,
    epsilon: float = DEFAULT_EPSILON,
) -> torch.Tensor:
    """Horizon of every unit of one layer (Eq. 2 and 3), computed in float64.

    Args:
        a_log: learned log-scale, one entry a head in any shape and dtype; None for the exponential form.
        dt_bias: learned bias, one entry a unit in any shape and dtype, channels of a head together.
        layer: the layer.
        gate: the gate's constants.
        gate_input: representative gate input a_s; `DEFAULT_GATE_INPUT` has one for each form.
        epsilon: what is left of a unit after one horizon, between 0 and 1.

    Returns:
        Tokens, float32 ``[units]``, at least 0 and at most `LONGEST_HORIZON`; never infinite or NaN. A decay so strong
        that its horizon underflows gives 0.

    Raises:
        PlanError: sizes do not fit the layer, a parameter is not finite, or a number is out of range.
    """
    if not 0 < epsilon < 1 or not math.isfinite(gate_input):
        raise PlanError(f"epsilon is {epsilon} and gate_input {gate_input}; wanted 0 < epsilon < 1 and a finite input")
    bias = _checked("dt_bias", dt_bias, layer.units).view(layer.heads, -1)
    if gate.form == "exponential":
        log_rate = bias + gate_input
    elif a_log is None:
        raise PlanError(f"a {gate.form} gate needs A_log, and there is none")
    else:
        log_rate = _log_rate(_checked("A_log", a_log, layer.heads).view(-1, 1), bias + gate_input, gate)
    # in logarithms, where neither a rate nor a decay under- or overflows
    log_horizon = math.log(-math.log(epsilon)) - log_rate
    return log_horizon.clamp(max=math.log(LONGEST_HORIZON)).exp().float().flatten()


def _log_rate(a_log: torch.Tensor, x: torch.Tensor, gate: Gate) -> torch.Tensor:
    """``log(-g)`` of the log-decay g per token (Eq. 2); ``a_log`` ``[H, 1]``, ``x`` ``[H, units of a head]``."""
    if gate.form == "softplus":
        # where softplus underflows the horizon is infinite, and clamped
        return a_log + F.softplus(x, threshold=40.0).clamp(gate.dt_min, gate.dt_max).log()
    if gate.lower_bound is None:
        raise PlanError("a bounded gate needs its lower bound, and there is none")
    # finite, so that a zero input stays zero
    amplitude = a_log.exp().clamp(max=torch.finfo(torch.float64).max)
    return math.log(-gate.lower_bound) + F.logsigmoid(amplitude * x)


def _checked(name: str, values: torch.Tensor, count: int) -> torch.Tensor:
    if values.numel() != count:
        raise PlanError(f"{name} has {values.numel()} entries (shape {list(values.shape)}); wanted {count}")
    flat = values.detach().cpu().double().flatten()
    if not bool(flat.isfinite().all()):
        raise PlanError(f"{name} has entries that are not finite: the weights are damaged")
    return flat
