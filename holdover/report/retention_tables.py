"""The retention report as tables."""

from __future__ import annotations

import torch

from holdover.report.retention import MODES, RANKS, RetentionReport, Window
from holdover.report.tables import Table, ratio, size

_QUANTILES = (0.0, 0.1, 0.5, 0.9, 1.0)
_QUANTILE_NAMES = ("shortest", "10 %", "median", "90 %", "longest")
_COUNTS = ("W_max", "units kept", "of all", "layers", "mean of layers", "most", "mixed heads")
_BYTES = ("W_max", "ragged", "by", "padded by", "temporal by", "temporal padded by", "INT8", "by")


def retention_tables(report: RetentionReport) -> list[Table]:
    """Horizons of every recurrent layer, then units, bytes and tensor-parallel imbalance at every cutoff."""
    windows = report.windows
    return [
        _horizons(report),
        Table("retained units by cutoff", _COUNTS, tuple(_counts_row(window) for window in windows)),
        Table(
            "checkpoint by cutoff, and by how much smaller",
            _BYTES,
            tuple(_bytes_row(window) for window in windows),
        ),
        _imbalance(report),
    ]


def _horizons(report: RetentionReport) -> Table:
    plan = report.plan
    title = f"retention horizons in tokens ({plan.gate} gate, a_s = {plan.gate_input:g}, epsilon = {plan.epsilon:g})"
    kept = tuple(f"kept at {window.summary.w_max:,}" for window in report.windows)
    rows = []
    for position, (layer, horizons) in enumerate(zip(report.decay.layout.state.layers, plan.horizons, strict=True)):
        quantiles = torch.quantile(horizons.double(), torch.tensor(_QUANTILES, dtype=torch.float64)).tolist()
        fractions = [_share(window.summary.layer_means[position]) for window in report.windows]
        rows.append((str(layer.index), *map(_tokens, quantiles), *fractions))
    return Table(title, ("layer", *_QUANTILE_NAMES, *kept), tuple(rows))


def _counts_row(window: Window) -> tuple[str, ...]:
    summary = window.summary
    return (
        f"{summary.w_max:,}",
        f"{summary.retained:,}",
        _share(summary.retained_fraction),
        " to ".join(map(_share, summary.layer_range)),
        f"{summary.r_mean:,.1f}",
        f"{summary.r_max:,}",
        _share(summary.mixed_pairs),
    )


def _bytes_row(window: Window) -> tuple[str, ...]:
    ratios = window.ratios
    full = (ratios.c_ckpt, ratios.c_ckpt_padded, ratios.c_temp_ragged, ratios.c_temp_padded)
    int8 = (size(window.nbytes_int8), ratio(ratios.c_ckpt_int8))
    return (f"{window.summary.w_max:,}", size(window.nbytes), *map(ratio, full), *int8)


def _imbalance(report: RetentionReport) -> Table:
    shown = [ranks for ranks in RANKS if ranks > 1]
    rows = [
        (f"{window.summary.w_max:,}", mode, *(ratio(window.imbalance[ranks][mode]) for ranks in shown))
        for window in report.windows
        for mode in MODES
    ]
    columns = ("W_max", "placement", *(f"TP {ranks}" for ranks in shown))
    return Table("stored units of the fullest rank over the mean", columns, tuple(rows))


def _tokens(horizon: float) -> str:
    return f"{horizon:.1f}" if horizon < 100 else f"{horizon:,.0f}" if horizon < 1e7 else f"{horizon:.0e}"


def _share(fraction: float) -> str:
    return f"{100 * fraction:.1f} %"
