"""What contexts composed of chunks cost, and where their error comes from, in sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from holdover.report.quality.composed import PROTOCOL, constructed, main_ratio, swept
from holdover.report.quality.findings.part import SAID, Part, listed, sorted_out, told_apart
from holdover.report.quality.results import Facts, ModelResults, Results, Rows
from holdover.report.quality.section import (
    Verdict,
    brief,
    difference,
    estimate,
    grouped,
    interval,
    signed,
    verdict,
)

# of an error, above which it is most of it
_HALF = 0.5


@dataclass(frozen=True)
class Rivals:
    """Exact composition against the last chunk's state on the same positions, in one model and task.

    Attributes:
        name: of model and task.
        rows: KL of exact composition for every selector and budget, with its difference to the last chunk's state.
        lead: of them the one with the largest difference that is told apart; else at the paper's budget.
    """

    name: str
    rows: Rows
    lead: Facts

    def count(self, said: Verdict) -> int:
        """Pairs of selector and budget whose difference says so."""
        return sum(verdict(row, "kl") == said for row in self.rows)

    @property
    def exact_wins(self) -> bool:
        """Whether exact composition is better in most pairs."""
        return 2 * self.count("better") > len(self.rows)

    @property
    def exact_loses(self) -> bool:
        """Whether exact composition is worse in most pairs."""
        return 2 * self.count("worse") > len(self.rows)


def composed(results: Results) -> Part:
    """Which initial state is best, why exact composition is off, and what windows around seams do."""
    files = [(model.name, facts) for model in results.models for _, facts in model.of(PROTOCOL)]
    pairs = [(facts, one) for name, facts in files for one in rivals(name, facts)]
    found = [_states(*pair) for pair in sorted(pairs, key=lambda pair: -abs(pair[1].lead["difference"]))]
    found += [line for name, facts in files if (line := _depth(name, facts))]
    return Part("Contexts composed of chunks (LinearKV)", (*found, *_windows(files)))


def rivals(name: str, facts: Facts) -> list[Rivals]:
    """One for every task."""
    rows = [row for row in _against_last(facts, "exact") if swept(row)]
    tasks = grouped(rows, lambda row: str(row["task"]))
    return [
        Rivals(name if len(tasks) == 1 else f"{name} ({task or 'all'})", same, _lead(same))
        for task, same in tasks.items()
    ]


def files_of(model: ModelResults) -> list[Facts]:
    """The model's results of the protocol."""
    return [facts for _, facts in model.of(PROTOCOL)]


def place(row: Facts) -> str:
    """Selector and budget."""
    return f"{row['selector']} at r = {row['ratio']:g}"


def layers_below(facts: Facts) -> tuple[int, int]:
    """Recurrent layers where exact composition is off by less than the last chunk's state, and all of them."""
    curves = {curve["initialiser"]: curve["layers"] for curve in constructed(facts)}
    exact, last = curves.get("exact", {}), curves.get("last", {})
    shared = exact.keys() & last.keys()
    return sum(exact[layer]["high"] < last[layer]["low"] for layer in shared), len(shared)


def left_of_error(facts: Facts) -> Facts | None:
    """What the inputs of their context leave of exact composition's error, where it is most; None if not asked."""
    causes = [cause for cause in facts["causes"] if cause["inputs"] == "true"]
    return max(causes, key=lambda cause: float(cause["left"]["mean"]), default=None)


def reason(left: Facts) -> str:
    """What an error's remainder says of its cause."""
    if left["high"] < _HALF:
        return "most of it comes from isolated inputs"
    if left["low"] > _HALF:
        return "isolated inputs do not explain most of it"
    return "the figures do not tell whether most of it comes from isolated inputs"


def _against_last(facts: Facts, state: str) -> Rows:
    return [
        row
        for row in facts["rows"]
        if row["metric"] == "kl" and row["initialiser"] == state and row["difference"] is not None
    ]


def _lead(rows: Rows) -> Facts:
    main = main_ratio(rows)
    at_main = [row for row in rows if row["ratio"] == main]
    return next(iter(told_apart(at_main, "kl") or told_apart(rows, "kl")), at_main[0])


def _states(facts: Facts, one: Rivals) -> str:
    counts = ", ".join(f"{SAID[said]} in {len(found)}" for said, found in sorted_out(one.rows, "kl").items())
    ratios = [row["ratio"] for row in one.rows]
    best, times = Counter(map(_lowest, _by_cell(facts, one))).most_common(1)[0]
    return (
        f"{one.name}: in {len(one.rows)} pairs of selector and r from {min(ratios):g} to {max(ratios):g} `exact` is, "
        f"against `last`, {counts}: KL {difference(one.lead, 'kl', place(one.lead))}{_kept(facts, one.lead)}. Of all "
        f"states `{best}` has the lowest KL in {times} pairs."
    )


def _kept(facts: Facts, lead: Facts) -> str:
    """What every state leaves of a full prefill's right answers in one pair, and over the selectors at its budget."""
    rows = [
        row
        for row in facts["rows"]
        if row["metric"] == "percent of full" and (row["task"], row["ratio"]) == (lead["task"], lead["ratio"])
    ]
    parts = [
        f"{brief(row['mean'])} % ({interval(row['low'], row['high'], brief)}{_spread(same)}) with `{state}`"
        for state, same in grouped(rows, lambda row: str(row["initialiser"])).items()
        for row in same
        if row["selector"] == lead["selector"]
    ]
    return f", and with {place(lead)} of a full prefill's right answers are left {listed(parts)}" if parts else ""


def _spread(rows: Rows) -> str:
    """Means of several selectors, from least to most."""
    means = [row["mean"] for row in rows]
    return f"; over selectors {interval(min(means), max(means), brief)}" if len(means) > 1 else ""


def _cell(row: Facts) -> tuple[object, ...]:
    return row["task"], row["selector"], row["ratio"]


def _by_cell(facts: Facts, one: Rivals) -> list[Rows]:
    """KL of every initial state, for each pair of selector and budget."""
    cells = {_cell(row) for row in one.rows}
    rows = (row for row in facts["rows"] if row["metric"] == "kl" and _cell(row) in cells)
    return list(grouped(rows, _cell).values())


def _lowest(rows: Rows) -> str:
    return str(min(rows, key=lambda row: float(row["mean"]))["initialiser"])


def _depth(name: str, facts: Facts) -> str:
    """How far off constructed states are, whether that grows with depth, and why."""
    curves = {curve["initialiser"]: curve for curve in constructed(facts)}
    if "exact" not in curves:
        return ""
    off = ", ".join(f"`{state}` {_worst(curves[state])}" for state in ("exact", "last") if state in curves)
    below, layers = layers_below(facts)
    rank = f" and is below that of `last` in {below} of {layers} layers" if layers else ""
    cause, why = left_of_error(facts), ""
    if cause is not None:
        left = estimate(cause["left"], cause["count"])
        why = (
            f" Made of the inputs that chunks see in their context, it keeps at most {left} of it, in layer "
            f"{cause['layer']}: {reason(cause['left'])}."
        )
    return f"{name}, nothing run again: most off are {off}. The error of `exact` {_trend(curves['exact'])}{rank}.{why}"


def _worst(curve: Facts) -> str:
    return f"in layer {curve['worst']}, by {estimate(curve['layers'][str(curve['worst'])], curve['count'])}"


def _trend(curve: Facts) -> str:
    rise = curve["rise"]
    if rise is None or rise["low"] <= 0 <= rise["high"]:
        return "has no trend over layers"
    figures = f"rank correlation {signed(rise['mean'])}, {interval(rise['low'], rise['high'], signed)}"
    return f"{'grows' if rise['low'] > 0 else 'falls'} with depth ({figures})"


def _windows(files: Sequence[tuple[str, Facts]]) -> Iterator[str]:
    """Windows around seams, over all models."""
    found = [(name, row) for name, facts in files for row in _against_last(facts, "exact") if row["window"] is not None]
    if not found:
        return
    parts = []
    for name, pairs in grouped(found, lambda pair: pair[0]).items():
        rows = [row for _, row in pairs]
        row = next(iter(told_apart(rows, "kl")), rows[0])
        said = verdict(row, "kl")
        times = sum(verdict(other, "kl") == said for other in rows)
        by = difference(row, "kl", f"window {row['window']}")
        parts.append(f"on {name} {SAID[said]} in {times} of {len(rows)}, KL {by}")
    windows = listed(f"{row['window']} ({row['recomputed']:.1%})" for _, row in found)
    yield f"Windows around seams of {windows} tokens: `exact` is, against `last`, {'; '.join(parts)}."
