"""What a result must have to stand in the report. A figure that nobody can weigh is not printed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from holdover.report.quality.results import Facts, ModelResults, Results

# protocols of arms that keep checkpoints; a dense one's hits load nothing that is compressed
_LOADING = ("warm-replay", "combinations")
_DENSE = "dense"


def check(results: Results) -> list[str]:
    """What is wrong, a sentence each; empty if everything can be reported."""
    return [line for model in results.models for line in _model(model)]


def _model(model: ModelResults) -> Iterator[str]:
    if not model.protocols:
        yield f"{model.name}: no protocol was run on it"
    digests: dict[str, str] = {}
    for name, facts in sorted(model.protocols):
        where = f"{model.name}/{name}"
        digest = facts.get("model")
        if isinstance(digest, str) and digest:
            # the rest is the dtype, which protocols choose
            digests.setdefault(digest.partition(":")[0], where)
        else:
            yield f"{where}: no digest of the model"
        yield from _rows(where, facts)
        for overall in facts.get("overall", []):
            if overall.get("merge_interval") is not None and not overall.get("appended"):
                yield f"{where}, {overall.get('arm')}: no token went to the arm's log"
    if len(digests) > 1:
        yield f"{model.name}: measured with different weights in {' and '.join(digests.values())}"


def _rows(where: str, facts: Facts) -> Iterator[str]:
    rows = facts.get("rows")
    if not isinstance(rows, list) or not rows:
        yield f"{where}: no rows"
        return
    for number, row in enumerate(rows, start=1):
        at = f"{where}, row {number} ({_label(row)})"
        if not _is_count(row.get("count")):
            yield f"{at}: no count of instances"
        if not _has_interval(row):
            yield f"{at}: no interval"
        if facts.get("protocol") in _LOADING and _kind(row) != _DENSE and not _loads(row):
            yield f"{at}: the arm made no compressed load"


def _label(row: Mapping[str, Any]) -> str:
    """What tells a row from others: its texts and cutoff."""
    parts = [str(value) for name, value in row.items() if isinstance(value, str) or name == "w_max"]
    return ", ".join(part for part in parts if part not in ("", "None")) or "unnamed"


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _has_interval(row: Mapping[str, Any]) -> bool:
    low, high = row.get("low"), row.get("high")
    ends = [float(end) for end in (low, high) if isinstance(end, int | float) and math.isfinite(end)]
    return len(ends) == 2 and ends[0] <= ends[1]


def _loads(row: Mapping[str, Any]) -> object:
    """Compressed loads of the row's arm, or the share of its requests that made one."""
    return row["work"].get("loads") if "work" in row else row.get("loaded")


def _kind(row: Mapping[str, Any]) -> object:
    """How the row's arm keeps checkpoints."""
    return row.get("checkpoint", row.get("arm"))
