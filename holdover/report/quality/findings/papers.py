"""Where the figures differ from what the papers found, and where they do not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from holdover.report.quality.checkpoints import right
from holdover.report.quality.composed import main_ratio
from holdover.report.quality.findings.checkpoints import Control, controls
from holdover.report.quality.findings.composed import (
    Rivals,
    files_of,
    layers_below,
    left_of_error,
    place,
    reason,
    rivals,
)
from holdover.report.quality.findings.part import Part, listed
from holdover.report.quality.results import Facts, ModelResults, Results
from holdover.report.quality.section import brief, difference, estimate, grouped, interval, wilson

_TABLE_1A = "DASC, Table 1(a): facts are retrieved from keys and values, not from recurrent states"
_ONE_STATE = (
    "LinearKV: one chunk's state (`last`) is as good as exact composition on GDN, and on Mamba-2, where exact "
    "composition collapses, better"
)
_NAIVE = "LinearKV, App. A: running selected tokens again, by any selector, is better than running none"
_TABLE_1B = "DASC, Table 1(b): static horizons correlate with empirical ones, more than with the magnitudes of states"
_TABLE_2 = (
    "DASC, Table 2: `nr` is better than the mean of five random masks of as many units on Kimi models, and now better, "
    "now worse on Qwen3-Next"
)
# interventions that Table 1(a) finds harmful, and harmless
_NEEDED, _SPARE = "zero-full-kv", "zero-linear"
Models = Sequence[ModelResults]
Scores = Mapping[str, tuple[int, int]]


@dataclass(frozen=True)
class Comparison:
    """What a paper found, beside what was found here.

    Attributes:
        text: both.
        short: the same in one sentence; empty where they agree.
    """

    text: str
    short: str = ""


def papers(results: Results) -> Part:
    """Contradictions first."""
    found = [
        one for say in (_retrieval, _initial_state, _naive_reuse, _horizons, _masks) for one in say(results.models)
    ]
    ordered = sorted(found, key=lambda one: not one.short)
    return Part(
        "What differs from the papers, and what does not",
        tuple(one.text for one in ordered),
        tuple(one.short for one in ordered if one.short),
    )


def _retrieval(models: Models) -> Iterator[Comparison]:
    seen = {model.name: scores for model in models if (scores := _scores(model))}
    if not seen:
        return
    other = {name: scores for name, scores in seen.items() if not _as_in_table_1a(scores)}
    same = {name: scores for name, scores in seen.items() if name not in other}
    parts = [f"{word}: {_shares(found)}" for word, found in (("Not so here", other), ("So here", same)) if found]
    first = dict(list(other.items())[:1])
    short = f"{_TABLE_1A}. Not so on {listed(other)}; {_shares(first)}." if other else ""
    yield Comparison(f"{_TABLE_1A}. {'. '.join(parts)}.", short)


def _scores(model: ModelResults) -> dict[str, tuple[int, int]]:
    needles = model.files.get("validate", {}).get("needle", [])
    found = {score["arm"]: right(score) for score in needles}
    return found if {"baseline", _NEEDED, _SPARE} <= found.keys() else {}


def _as_in_table_1a(scores: Scores) -> bool:
    def needs(arm: str) -> bool:
        return wilson(*scores[arm])[1] < wilson(*scores["baseline"])[0]

    return needs(_NEEDED) and not needs(_SPARE)


def _shares(seen: Mapping[str, Scores]) -> str:
    """Facts found of those asked, by what is set to zero."""

    def share(scores: Scores, arm: str) -> str:
        return f"{scores[arm][0]} of {scores[arm][1]} ({interval(*wilson(*scores[arm]), brief)})"

    return "; ".join(
        f"{name} finds {share(scores, _SPARE)} with states at zero, {share(scores, _NEEDED)} with keys and values at "
        f"zero, {share(scores, 'baseline')} untouched"
        for name, scores in seen.items()
    )


def _initial_state(models: Models) -> Iterator[Comparison]:
    pairs = [(facts, one) for model in models for facts in files_of(model) for one in rivals(model.name, facts)]
    if not pairs:
        return
    wins = [pair for pair in pairs if pair[1].exact_wins]
    others = [one.name for _, one in pairs if not one.exact_wins]
    if not wins:
        yield Comparison(f"{_ONE_STATE}. Here too `exact` is in most pairs of selector and r not better.")
        return
    rest = f", but not on {listed(others)}" if others else ""
    where = "; ".join(_win(one) for _, one in wins)
    most = min((one for _, one in wins), key=lambda one: float(one.lead["difference"]))
    by = difference(most.lead, "kl", f"{most.name}, {place(most.lead)}")
    short = f"{_ONE_STATE}. Here `exact` is better on {listed(one.name for _, one in wins)}, by KL {by}{rest}."
    yield Comparison(f"{_ONE_STATE}. Here `exact` is better on {where}{rest}.{_why(wins)}", short)


def _win(one: Rivals) -> str:
    by = difference(one.lead, "kl", place(one.lead))
    return f"{one.name} in {one.count('better')} of {len(one.rows)} pairs of selector and r, KL {by}"


def _why(wins: Sequence[tuple[Facts, Rivals]]) -> str:
    """The paper's explanation, input error that grows with depth, against what curves and causes show."""
    layers = [
        f"{below} of {every} layers on {one.name}"
        for facts, one in wins
        for below, every in (layers_below(facts),)
        if every
    ]
    smaller = f" The error of `exact` is smaller than that of `last` in {listed(layers)}." if layers else ""
    causes = [(one.name, cause) for facts, one in wins if (cause := left_of_error(facts)) is not None]
    parts = [
        f" What true inputs leave of it is {listed(f'{_left(cause)} on {name}' for name, cause in same)}: {said}."
        for said, same in grouped(causes, lambda pair: reason(pair[1]["left"])).items()
    ]
    return smaller + "".join(parts)


def _left(cause: Facts) -> str:
    return estimate(cause["left"], cause["count"])


def _naive_reuse(models: Models) -> Iterator[Comparison]:
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


@dataclass(frozen=True)
class _Selection:
    """Right answers from `last`, with a selector's tokens run again and with none."""

    name: str
    row: Facts
    none: Facts


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


def _horizons(models: Models) -> Iterator[Comparison]:
    found = [(model.name, model.files["validate"]["spearman"]) for model in models if "validate" in model.files]
    both = [(name, pair) for name, pair in found if pair["horizons"] and pair["magnitudes"]]
    if both:
        higher = sum(pair["horizons"]["median"] > pair["magnitudes"]["median"] for _, pair in both)
        figures = "; ".join(
            f"{name} {_quartiles(pair['horizons'])} and {_quartiles(pair['magnitudes'])}" for name, pair in both
        )
        so = f"So on {higher} of {len(both)} models, by median rank correlation (quartiles)"
        yield Comparison(f"{_TABLE_1B}. {so}: {figures}.")


def _quartiles(pair: Facts) -> str:
    return f"{brief(pair['median'])} ({interval(pair['q1'], pair['q3'], brief)})"


def _masks(models: Models) -> Iterator[Comparison]:
    parts = [f"on {model.name} {_ranked(found)}" for model in models if (found := controls(model))]
    if parts:
        yield Comparison(f"{_TABLE_2}. Here, of pairs of task and W_max, it is {'; '.join(parts)}.")


def _ranked(found: Sequence[Control]) -> str:
    better, worse = (sum(sign * one.worse > 0 for one in found) for sign in (1, -1))
    return f"better in {better}, equal in {len(found) - better - worse} and worse in {worse}"
