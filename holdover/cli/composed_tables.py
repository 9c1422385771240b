"""Tables of the composed protocol, and its verdict on exact composition in a sentence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from holdover.report.tables import Table

if TYPE_CHECKING:
    from holdover.evaluation.protocols.composed.depth import Cause, Curve
    from holdover.evaluation.protocols.composed.summary import Row
    from holdover.evaluation.protocols.estimate import Estimate

_ANSWERS = ("selector", "budget", "state", "run again", "% of full", "to last", "KL", "to last", "NLL", "n")
_WORST = ("selector", "state", "inputs", "part", "worst layer", "error", "rank correlation with depth", "n")
# attention layers' rows: figures of the file that no table has
_ROWS = ("keys", "values", "latents", "rotary keys")


def answer_tables(rows: Sequence[Row]) -> Iterator[Table]:
    """A table for each task, a line for each arm; figures with their 95 % intervals."""
    for task in dict.fromkeys(row.task for row in rows):
        arms: dict[tuple[Any, ...], dict[str, Row]] = {}
        for row in rows:
            if row.task == task:
                arms.setdefault((row.selector, row.ratio, row.window, row.initialiser), {})[row.metric] = row
        title = f"Answers over composed contexts, with 95 % intervals{task and f': {task}'}"
        yield Table(title, _ANSWERS, tuple(map(_answer_cells, arms.values())))


def curve_tables(curves: Sequence[Curve]) -> Iterator[Table]:
    """States as constructed by layer, and the worst layer of every part of every arm."""
    from holdover.evaluation.chunks.depth import STATE
    from holdover.evaluation.protocols.composed.design import NONE

    built = [curve for curve in curves if curve.selector == NONE.selector and curve.part == STATE]
    lines = [(str(layer), *(f"{curve.layers[layer].mean:.2g}" for curve in built)) for layer in built[0].layers]
    title = "Relative error of the state in front of the query, nothing run again"
    yield Table(title, ("layer", *map(_label, built)), tuple(lines))
    shown = [curve for curve in curves if curve.part not in _ROWS]
    yield Table("Worst layers, with 95 % intervals", _WORST, tuple(map(_worst_cells, shown)))


def cause_tables(causes: Sequence[Cause]) -> Iterator[Table]:
    """What is left of exact composition's error where its maps are made of other inputs."""
    layers: dict[int, dict[str, Cause]] = {}
    for cause in causes:
        layers.setdefault(cause.layer, {})[cause.inputs] = cause
    if layers:
        sources = list(next(iter(layers.values())))
        lines = [(str(layer), *(_estimate(found[one].left, 100) for one in sources)) for layer, found in layers.items()]
        title = "Left of the error of exact composition, in percent, where its maps are made of"
        yield Table(title, ("layer", *(source.replace("-", " ") for source in sources)), tuple(lines))


def verdict(curves: Sequence[Curve], causes: Sequence[Cause]) -> str:
    """Whether exact composition's error comes of its inputs, and whether it rises with depth; empty without it."""
    from holdover.evaluation.chunks.depth import STATE
    from holdover.evaluation.protocols.composed.design import EXACT, NONE

    for curve in curves:
        if (curve.selector, curve.initialiser, curve.part, curve.inputs) == (NONE.selector, EXACT, STATE, "isolated"):
            error = curve.layers[curve.worst]
            left = [one.left for one in causes if one.inputs == "true" and one.layer == curve.worst]
            rest = f"; true inputs leave {_estimate(left[0], 100)} % of it" if left else ""
            return f"exact composition: worst at layer {curve.worst}, {_estimate(error)}{rest}; {_trend(curve.rise)}"
    return ""


def _trend(rise: Estimate | None) -> str:
    if rise is None:
        return "too few layers for a trend with depth"
    word = "rises with" if rise.low > 0 else "falls with" if rise.high < 0 else "has no clear trend with"
    return f"its error {word} depth, rank correlation {_estimate(rise)}"


def _answer_cells(metrics: dict[str, Row]) -> tuple[str, ...]:
    from holdover.evaluation.protocols.composed.summary import KL, NLL, PERCENT, RIGHT

    row, percent, kl = metrics[RIGHT], metrics.get(PERCENT), metrics[KL]
    return (
        row.selector,
        f"window {row.window}" if row.ratio is None else f"{row.ratio:g}",
        row.initialiser,
        f"{100 * row.recomputed:.1f} %",
        "-" if percent is None else f"{percent.mean:.1f} ({percent.low:.1f} to {percent.high:.1f})",
        "-" if percent is None else _difference(percent),
        _mean(kl),
        _difference(kl),
        f"{metrics[NLL].mean:.3g}",
        str(row.count),
    )


def _worst_cells(curve: Curve) -> tuple[str, ...]:
    selector = curve.selector if not curve.ratio else f"{curve.selector} {curve.ratio:g}"
    worst, rise = curve.layers[curve.worst], "-" if curve.rise is None else _estimate(curve.rise)
    named = (selector, curve.initialiser, curve.inputs.replace("-", " "), curve.part)
    return (*named, str(curve.worst), _estimate(worst), rise, str(curve.count))


def _label(curve: Curve) -> str:
    inputs = "" if curve.inputs == "isolated" else f", {curve.inputs.replace('-', ' ')}"
    return f"{curve.initialiser}{inputs}"


def _mean(row: Row) -> str:
    return f"{row.mean:.2g} ({row.low:.2g} to {row.high:.2g})"


def _difference(row: Row) -> str:
    if row.difference is None:
        return "-"
    return f"{row.difference:+.2g} ({row.difference_low:+.2g} to {row.difference_high:+.2g})"


def _estimate(one: Estimate, factor: float = 1) -> str:
    return f"{factor * one.mean:.3g} ({factor * one.low:.3g} to {factor * one.high:.3g})"
