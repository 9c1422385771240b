"""What mechanisms cost together, and restores one after another, in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdover.report.quality.combinations import PROTOCOL
from holdover.report.quality.findings.part import Part, arm_of, counted, listed, told_apart
from holdover.report.quality.results import Facts, Results, Rows
from holdover.report.quality.section import brief, difference, interval, is_rounding, signed

_TITLE = "Combinations"
Files = Sequence[tuple[str, Facts]]


def combinations(results: Results) -> Part:
    """Growth over restores a model; what logs and drafts add, and how chunk states are kept, over all of them."""
    files = [(model.name, facts) for model in results.models for _, facts in model.of(PROTOCOL)]
    chained = [file for file in files if _chains(file[1])]
    found = [_growth(*file) for file in sorted(chained, key=lambda file: -_chains(file[1])[0][1]["slope"])]
    return Part(_TITLE, (*found, *_added(files), *_chunks(files)), tuple(_short(files)))


def _chains(facts: Facts) -> list[tuple[str, Facts]]:
    """One chain of restores for every way to keep checkpoints, fastest growth first: the one that has a control."""
    arms = {row["arm"]: row for row in facts["rows"]}
    chosen: dict[str, Facts] = {}
    for row in facts["growth"]:
        name = arm_of(arms[row["arm"]], "checkpoint")
        if name not in chosen or (chosen[name]["excess"] is None and row["excess"] is not None):
            chosen[name] = row
    return sorted(chosen.items(), key=lambda item: -item[1]["slope"])


def _grows(low: float | None, high: float | None) -> bool:
    return low is not None and high is not None and low > 0 and not is_rounding(low, high)


def _slope(row: Facts) -> str:
    return f"{signed(row['slope'])} ({interval(row['low'], row['high'], signed)})"


def _growth(name: str, facts: Facts) -> str:
    chains = _chains(facts)
    growing = [f"{_slope(row)} with {arm}" for arm, row in chains if _grows(row["low"], row["high"])]
    steady = [arm for arm, row in chains if not _grows(row["low"], row["high"])]
    beyond = [f"{_excess(row)} with {arm}" for arm, row in chains if _grows(row["excess_low"], row["excess_high"])]
    restores, count = (max(row[key] for _, row in chains) for key in ("restores", "count"))
    parts = [f"KL grows, in nats a restore, by {listed(growing)}"] if growing else []
    parts += [f"it is not seen to grow with {listed(steady)}"] if steady else []
    parts += [f"beyond what one restore costs it grows by {listed(beyond)}"] if beyond else []
    return f"{name}, {restores} restores in a row ({_instances(count)}): {'; '.join(parts)}."


def _added(files: Files) -> Iterator[str]:
    """What a log and drafts add to what checkpoints cost."""
    rows = [row for _, facts in files for row in facts["rows"] if row["difference"] is not None and not row["once"]]
    apart = told_apart(rows, "kl")
    if rows:
        most = ""
        if apart:
            row, where = apart[0], _named(files, apart[0], "rows")
            place = f"{where}, {arm_of(row, 'checkpoint')}, {row['decode']} with drafts {row['speculate']}"
            most = f", at most {difference(row, 'kl', place)} of {brief(row['mean'])}"
        yield (
            "A log, with drafts or without, changes what checkpoints cost by more than rounding in "
            f"{len(apart)} of {len(rows)} combinations{most}."
        )


def _chunks(files: Files) -> Iterator[str]:
    """What it costs to keep the states of chunks in less."""
    rows: Rows = [row for _, facts in files for row in facts["chunks"] if row["difference"] is not None]
    apart = told_apart(rows, "kl")
    if rows:
        most = ""
        if apart:
            row, where = apart[0], _named(files, apart[0], "chunks")
            place = f"{where}, {arm_of(row, 'state')}, `{row['initialiser']}`, {row['selector']} {row['ratio']:.0%}"
            most = f", at most by {difference(row, 'kl', place)} of {brief(row['mean'])}"
        yield (
            f"Chunk states kept as {listed(row['state'] for row in rows)} are told apart from full ones in "
            f"{len(apart)} of {len(rows)} combinations{most}."
        )


def _named(files: Files, wanted: Facts, key: str) -> str:
    return next(name for name, facts in files if any(row is wanted for row in facts[key]))


def _short(files: Files) -> Iterator[str]:
    chains = [(name, arm, row) for name, facts in files for arm, row in _chains(facts) if row["excess"] is not None]
    growing = [chain for chain in chains if _grows(chain[2]["excess_low"], chain[2]["excess_high"])]
    if growing:
        name, arm, row = max(growing, key=lambda chain: chain[2]["excess"])
        yield (
            f"Lossy restores add up: over {row['restores']} in a row, KL beyond what one restore costs grows in "
            f"{len(growing)} of {len(chains)} chains, at most by {_excess(row)} nats a restore ({name}, {arm}, "
            f"{_instances(row['count'])})."
        )
    elif chains:
        every = counted(len(chains), "chain")
        yield f"Lossy restores are not seen to add up: KL grows beyond what one costs in none of {every}."


def _instances(count: int) -> str:
    """How many; resampling so few cannot say more than from which to which they are."""
    return f"n = {count}" + (", brackets are their range" if count <= 3 else "")


def _excess(row: Facts) -> str:
    return f"{signed(row['excess'])} ({interval(row['excess_low'], row['excess_high'], signed)})"
