"""What LinearKV found, beside what was found here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from holdover.report.quality.composed import main_ratio
from holdover.report.quality.findings.comparison import Comparison, by_design, most
from holdover.report.quality.findings.composed import (
    Rivals,
    files_of,
    layers_below,
    left_of_error,
    place,
    reason,
    rivals,
)
from holdover.report.quality.findings.part import listed
from holdover.report.quality.results import Facts, ModelResults
from holdover.report.quality.section import difference, estimate, grouped

_ONE_STATE = (
    "LinearKV: one chunk's state (`last`) is as good as exact composition on GDN, and on Mamba-2, where exact "
    "composition collapses, better"
)
_NAIVE = "LinearKV, App. A: running selected tokens again, by any selector, is better than running none"
# the family on which the paper finds that exact composition collapses
_COLLAPSES = "mamba2"
Models = Sequence[ModelResults]


@dataclass(frozen=True)
class _Rivalry:
    """Initial states of one model and task, with the files that they are from."""

    model: ModelResults
    facts: Facts
    states: Rivals


@dataclass(frozen=True)
class _Selection:
    """Right answers from `last`, with a selector's tokens run again and with none."""

    name: str
    row: Facts
    none: Facts


def initial_state(models: Models) -> Iterator[Comparison]:
    """§4: whether one chunk's state does what exact composition does."""
    found = [
        _Rivalry(model, facts, states)
        for model in models
        for facts in files_of(model)
        for states in rivals(model.name, facts)
    ]
    wins = [one for one in found if one.states.exact_wins]
    if wins:
        yield _better(wins, [one for one in found if not one.states.exact_wins])
    elif found:
        yield _no_better(found)


def _better(wins: Sequence[_Rivalry], others: Sequence[_Rivalry]) -> Comparison:
    rest = f", but not on {listed(one.states.name for one in others)}" if others else ""
    where = "; ".join(_win(one.states) for one in wins)
    largest = min((one.states for one in wins), key=lambda states: float(states.lead["difference"]))
    by = difference(largest.lead, "kl", f"{largest.name}, {place(largest.lead)}")
    names, design = listed(one.states.name for one in wins), by_design(one.model for one in wins)
    short = f"{_ONE_STATE}. Here `exact` is better on {names}, by KL {by}{rest}.{design}"
    return Comparison(f"{_ONE_STATE}. Here `exact` is better on {where}{rest}.{_why(wins)}{design}", short)


def _no_better(found: Sequence[_Rivalry]) -> Comparison:
    """As the paper has it, unless `last` is not better either where the paper finds it so."""
    same = f"{_ONE_STATE}. Here too `exact` is in most pairs of selector and r not better"
    asked = [one for one in found if one.model.files.get("inspect", {}).get("family") == _COLLAPSES]
    even = [one.states.name for one in asked if not one.states.exact_loses]
    if not most(even, asked):
        return Comparison(f"{same}.")
    text = f"{same}, but nor is `last` on {listed(even)}."
    return Comparison(text, text)


def _win(states: Rivals) -> str:
    by = difference(states.lead, "kl", place(states.lead))
    return f"{states.name} in {states.count('better')} of {len(states.rows)} pairs of selector and r, KL {by}"


def _why(wins: Sequence[_Rivalry]) -> str:
    """The paper's explanation, input error that grows with depth, against what curves and causes show."""
    layers = [
        f"{below} of {every} layers on {one.states.name}"
        for one in wins
        for below, every in (layers_below(one.facts),)
        if every
    ]
    smaller = f" The error of `exact` is smaller than that of `last` in {listed(layers)}." if layers else ""
    causes = [(one.states.name, cause) for one in wins if (cause := left_of_error(one.facts)) is not None]
    parts = [
        f" What true inputs leave of it is {listed(f'{_left(cause)} on {name}' for name, cause in same)}: {said}."
        for said, same in grouped(causes, lambda pair: reason(pair[1]["left"])).items()
    ]
    return smaller + "".join(parts)


def _left(cause: Facts) -> str:
    return estimate(cause["left"], cause["count"])


def naive_reuse(models: Models) -> Iterator[Comparison]:
    """Appendix A: whether tokens that are run again help."""
    pairs = [pair for model in models for facts in files_of(model) for pair in _selections(model.name, facts)]
    if not pairs:
        return
    worse = [pair for pair in pairs if pair.row["high"] < pair.none["low"]]
    better = [pair for pair in pairs if pair.row["low"] > pair.none["high"]]
    parts = [f"{word} {_reused(found)}" for word, found in (("fewer", worse), ("more", better)) if found]
    parts.append(f"not told apart in {len(pairs) - len(worse) - len(better)} of {len(pairs)} pairs")
    text = f"{_NAIVE}. Here, from `last`, by their intervals right answers are {'; '.join(parts)}."
    least = min(worse, key=lambda pair: float(pair.row["mean"]), default=None)
    yield Comparison(text, "" if least is None else f"{_NAIVE}. Here right answers can be fewer {_reused([least])}.")


def _reused(pairs: Sequence[_Selection]) -> str:
    parts = []
    for name, same in grouped(pairs, lambda pair: pair.name).items():
        found = listed(f"{estimate(pair.row, pair.row['count'])} with {place(pair.row)}" for pair in same)
        none = same[0].none
        parts.append(f"on {name}, {found} against {estimate(none, none['count'])}")
    return "; ".join(parts)


def _selections(name: str, facts: Facts) -> Iterator[_Selection]:
    rows = [row for row in facts["rows"] if row["metric"] == "right" and row["initialiser"] == "last"]
    main = main_ratio(facts["rows"])
    none = {row["task"]: row for row in rows if row["selector"] == "none"}
    several = len(none) > 1
    for row in rows:
        if row["ratio"] == main and row["task"] in none:
            yield _Selection(f"{name} ({row['task']})" if several else name, row, none[row["task"]])
