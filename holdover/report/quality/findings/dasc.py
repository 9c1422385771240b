"""What DASC found, beside what was found here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from holdover.report.quality.checkpoints import right
from holdover.report.quality.findings.checkpoints import Control, controls
from holdover.report.quality.findings.comparison import Comparison, by_design, most
from holdover.report.quality.findings.part import listed
from holdover.report.quality.results import Facts, ModelResults
from holdover.report.quality.section import brief, interval, wilson

_TABLE_1A = "DASC, Table 1(a): facts are retrieved from keys and values, not from recurrent states"
_TABLE_1B = "DASC, Table 1(b): static horizons correlate with empirical ones, more than with the magnitudes of states"
_TABLE_2 = (
    "DASC, Table 2: `nr` is better than the mean of five random masks of as many units on Kimi models, and now better, "
    "now worse on Qwen3-Next"
)
# interventions that Table 1(a) finds harmful, and harmless
_NEEDED, _SPARE = "zero-full-kv", "zero-linear"
Models = Sequence[ModelResults]
Scores = Mapping[str, tuple[int, int]]


def retrieval(models: Models) -> Iterator[Comparison]:
    """Table 1(a): whether facts come from keys and values."""
    seen = {model.name: scores for model in models if (scores := _scores(model))}
    if not seen:
        return
    other = {name: scores for name, scores in seen.items() if not _as_in_table_1a(scores)}
    same = {name: scores for name, scores in seen.items() if name not in other}
    why = by_design(model for model in models if model.name in other)
    parts = [f" Not so here: {_shares(other)}.{why}"] if other else []
    parts += [f" So here: {_shares(same)}."] if same else []
    first = dict(list(other.items())[:1])
    short = f"{_TABLE_1A}. Not so on {listed(other)}; {_shares(first)}.{why}" if other else ""
    yield Comparison(f"{_TABLE_1A}.{''.join(parts)}", short)


def horizons(models: Models) -> Iterator[Comparison]:
    """Table 1(b): what static horizons correlate with."""
    found = [(model.name, model.files["validate"]["spearman"]) for model in models if "validate" in model.files]
    both = {name: pair for name, pair in found if pair["horizons"] and pair["magnitudes"]}
    if not both:
        return
    other = {name: pair for name, pair in both.items() if not _as_in_table_1b(pair)}
    so = f"So on {len(both) - len(other)} of {len(both)} models, by median rank correlation (quartiles)"
    not_so = f"Not so on {listed(other)}, by median rank correlation (quartiles)" if most(other, both) else ""
    short = f"{_TABLE_1B}. {not_so}: {_correlations(other)}." if not_so else ""
    yield Comparison(f"{_TABLE_1B}. {so}: {_correlations(both)}.", short)


def masks(models: Models) -> Iterator[Comparison]:
    """Table 2: whether a plan is better than random masks."""
    seen = {model.name: found for model in models if (found := controls(model))}
    other = {name: found for name, found in seen.items() if _worse(found) > _better(found)}
    here = f"{_TABLE_2}. Here, of pairs of task and W_max, it is"
    if seen:
        short = f"{here} more often worse than better: {_ranks(other)}." if most(other, seen) else ""
        yield Comparison(f"{here} {_ranks(seen)}.", short)


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


def _as_in_table_1b(pair: Facts) -> bool:
    return bool(pair["horizons"]["median"] > max(0.0, pair["magnitudes"]["median"]))


def _correlations(seen: Mapping[str, Facts]) -> str:
    return "; ".join(
        f"{name} {_quartiles(pair['horizons'])} and {_quartiles(pair['magnitudes'])}" for name, pair in seen.items()
    )


def _quartiles(pair: Facts) -> str:
    return f"{brief(pair['median'])} ({interval(pair['q1'], pair['q3'], brief)})"


def _better(found: Sequence[Control]) -> int:
    return sum(one.worse > 0 for one in found)


def _worse(found: Sequence[Control]) -> int:
    return sum(one.worse < 0 for one in found)


def _ranks(seen: Mapping[str, Sequence[Control]]) -> str:
    """In how many pairs the plan is better, equal and worse."""
    parts = []
    for name, found in seen.items():
        better, worse = _better(found), _worse(found)
        parts.append(f"on {name} better in {better}, equal in {len(found) - better - worse} and worse in {worse}")
    return "; ".join(parts)
