"""Do static horizons order units as observed decay and state magnitudes do (DASC §3.4, Table 1b)?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor

from holdover.engine.host import Host
from holdover.evaluation.retention.empirical import Observation, observe
from holdover.evaluation.retention.gate_input import (
    CutoffError,
    Fit,
    Layers,
    cutoff_errors,
    fit_gate_input,
    median_error,
)
from holdover.evaluation.retention.prefixes import Prefix
from holdover.evaluation.retention.session import Session
from holdover.evaluation.retention.statistics import Quartiles, quartiles, spearman


@dataclass(frozen=True)
class Agreement:
    """Rank agreement of static horizons with what was observed: one correlation per prefix and layer.

    Attributes:
        horizons: with empirical horizons (H_s, H_e); None where no layer has units that differ.
        magnitudes: with state magnitudes (H_s, M_S); likewise.
    """

    horizons: Quartiles | None
    magnitudes: Quartiles | None


@dataclass(frozen=True)
class Judgement:
    """One gate input, judged on prefixes that it was not fitted on.

    Attributes:
        gate_input: a_s.
        agreement: Spearman correlations.
        error: median |ln H_s - ln H_e|.
        cutoffs: errors at each cutoff.
    """

    gate_input: float
    agreement: Agreement
    error: float
    cutoffs: list[CutoffError]


@dataclass(frozen=True)
class Calibration:
    """A gate input fitted on the prefixes at even places, judged on those at odd places beside the one in use.

    Attributes:
        fit: the fit, on the even ones.
        used: the gate input in use, on the odd ones.
        fitted: the fitted one, on the odd ones.
    """

    fit: Fit
    used: Judgement
    fitted: Judgement


def observe_all(host: Host, prefixes: Sequence[Prefix], epsilon: float) -> Iterable[Observation]:
    """Run every prefix by itself; what is seen of each, in order."""
    session = Session(host, max(len(prefix.tokens) for prefix in prefixes))
    return (observe(session, prefix.tokens, epsilon) for prefix in prefixes)


def agreement(static: Layers, observations: Sequence[Observation]) -> Agreement:
    """Spearman correlations within each layer of each prefix; units of different layers are never pooled."""

    def pairs(of: Callable[[Observation], Sequence[Tensor]]) -> Quartiles | None:
        return quartiles(spearman(s, e) for seen in observations for s, e in zip(static, of(seen), strict=True))

    return Agreement(pairs(lambda seen: seen.horizons), pairs(lambda seen: seen.magnitudes))


def calibrate_gate_input(
    static: Callable[[float], Layers], used: float, observations: Sequence[Observation], cutoffs: Sequence[int]
) -> Calibration | None:
    """Fit a_s on even prefixes, judge it on odd ones; None if there are no odd ones.

    Args:
        static: static horizons of every layer at a gate input.
        used: the gate input in use.
        observations: one for each prefix, in order.
        cutoffs: retention cutoffs W_max to judge at.
    """
    even, odd = observations[::2], observations[1::2]
    if not odd:
        return None
    fit = fit_gate_input(static, [seen.horizons for seen in even])

    def judge(gate_input: float) -> Judgement:
        horizons, seen = static(gate_input), [one.horizons for one in odd]
        return Judgement(
            gate_input, agreement(horizons, odd), median_error(horizons, seen), cutoff_errors(horizons, seen, cutoffs)
        )

    return Calibration(fit, judge(used), judge(fit.gate_input))
