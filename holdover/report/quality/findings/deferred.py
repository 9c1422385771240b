"""Whether decode from a log says what dense decode says, in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdover.report.quality.deferred import PROTOCOL
from holdover.report.quality.findings.part import Part, listed
from holdover.report.quality.results import Facts, Results, Rows
from holdover.report.quality.section import estimate, grouped, interval, is_rounding, signed


def deferred(results: Results) -> Part:
    """A sentence a model and dtype: logs that are rounding only, and narrower ones."""
    files = [(model.name, facts) for model in results.models for _, facts in model.of(PROTOCOL)]
    return Part(
        "Decode from a log (DeltaLog)", tuple(_said(name, facts) for name, facts in files), tuple(_short(files))
    )


def _wholes(facts: Facts) -> Rows:
    """Of every arm that has a log, the row of all tokens, most different first."""
    last = (rows[-1] for rows in grouped(facts["rows"], lambda row: str(row["arm"])).values())
    return sorted((row for row in last if row["merge_interval"] is not None), key=lambda row: -row["mean"])


def _sorted_out(rows: Rows) -> tuple[Rows, Rows]:
    """Logs that are rounding only, and the others."""
    only = [row for row in rows if is_rounding(row["low"], row["high"])]
    return only, [row for row in rows if row not in only]


def _said(name: str, facts: Facts) -> str:
    rounding, narrow = _sorted_out(_wholes(facts))
    parts = [f"{_figures(row)}, {row['agreement']:.2%} of tokens agree" for row in narrow]
    parts += [f"{_figures(row)}, which is rounding" for row in rounding]
    arms = {row["arm"] for row in narrow}
    moving = [_growth(row) for row in facts["overall"] if row["arm"] in arms and _moves(row)]
    parts += moving or (["no growth along the continuation is told apart"] if narrow else [])
    return f"{name}, {facts['dtype']}: mean KL {'; '.join(parts)}."


def _figures(row: Facts) -> str:
    return f"{estimate(row, row['count'])} with {row['arm']}"


def _moves(row: Facts) -> bool:
    low, high = row["growth_low"], row["growth_high"]
    return not (is_rounding(low, high) or low <= 0 <= high)


def _growth(row: Facts) -> str:
    figures = f"{signed(row['growth'])} ({interval(row['growth_low'], row['growth_high'], signed)})"
    return f"with {row['arm']} it {'grows' if row['growth'] > 0 else 'shrinks'} along the continuation by {figures}"


def _short(files: Sequence[tuple[str, Facts]]) -> Iterator[str]:
    pairs = [(name, row) for name, facts in files for row in _wholes(facts)]
    rounding, narrow = _sorted_out([row for _, row in pairs])
    if rounding:
        name, most = max((pair for pair in pairs if pair[1] in rounding), key=lambda pair: pair[1]["mean"])
        yield (
            f"Decode from a log of {listed(row['log'] for row in rounding)} is dense decode but for rounding: mean KL "
            f"at most {estimate(most, most['count'])}, on {name}"
            + (f"; narrower logs lose at most {_most(pairs, narrow)}." if narrow else ".")
        )
    elif narrow:
        yield f"Decode from a log differs from dense decode by a mean KL of at most {_most(pairs, narrow)}."


def _most(pairs: Sequence[tuple[str, Facts]], rows: Rows) -> str:
    name, most = max((pair for pair in pairs if pair[1] in rows), key=lambda pair: pair[1]["mean"])
    return f"{estimate(most, most['count'])}, {most['log']} on {name}"
