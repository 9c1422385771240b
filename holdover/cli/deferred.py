"""The deferred protocol of ``holdover eval``: what decode from a log costs, and what is shown of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdover.cli import measuring
from holdover.report.tables import Table

if TYPE_CHECKING:
    from holdover.engine.hf.loader import Loaded
    from holdover.evaluation.protocols.deferred.arms import Arm
    from holdover.evaluation.protocols.deferred.rollout import Block
    from holdover.evaluation.protocols.deferred.summary import Overall, Row
    from holdover.evaluation.protocols.problem import Problem

INTERVALS, LOGS, STEPS = "4,8,16", "engine,bf16/fp32,bf16/bf16", 256

Intervals = Annotated[str, typer.Option("--intervals", help="deferred: merge intervals, with commas.")]
Logs = Annotated[
    str,
    typer.Option(
        "--log",
        help="deferred: dtypes of a log's keys and values, as bf16/fp32, with commas; engine: what the engine keeps.",
    ),
]
Steps = Annotated[int, typer.Option(min=1, help="deferred: tokens of every continuation.")]

_ROWS = ("arm", "tokens", "mean KL", "95 % interval", "P50", "P95", "P99", "largest", "agree", "95 % interval", "n")
_OVERALL = ("arm", "growth of KL", "95 % interval", "same tokens", "95 % interval", "never", "gap", "state error", "n")


def run(
    loaded: Loaded,
    problems: Sequence[Problem],
    intervals: Sequence[int],
    logs: Sequence[str],
    tokens: int,
    batch: int,
    journal_path: Path | None,
    resume: bool,
) -> dict[str, Any]:
    """Continue every prefix densely and from every log, show what came of it, and return it for a file.

    Raises:
        HoldoverError: an arm or a prefix cannot be used, or an arm ran no token from its log.
    """
    from holdover.evaluation.journal import Journal
    from holdover.evaluation.protocols.deferred.arms import arms_of
    from holdover.evaluation.protocols.deferred.rollout import Schedule
    from holdover.evaluation.protocols.deferred.rollout import run as blocks_of
    from holdover.evaluation.protocols.deferred.summary import overall, rows
    from holdover.evaluation.protocols.problem import digest
    from holdover.evaluation.protocols.results import head

    arms = arms_of(loaded.host.layout.state, intervals, logs)
    schedule = Schedule(tokens, batch)
    identity = measuring.measured_by(loaded, protocol="deferred", problems=digest(problems), **asdict(schedule))
    results: dict[Arm, list[Block]] = {arm: [] for arm in arms}
    with Journal(journal_path, identity, resume=resume) as journal:
        steps = blocks_of(loaded.host, arms, problems, schedule, journal)
        for found in measuring.tracked(steps, -(-len(problems) // batch), f"{len(arms)} arms beside dense decode"):
            for arm, block in found.items():
                results[arm].append(block)
    by_position, in_all = rows(results), overall(results)
    measuring.show(_rows(by_position))
    measuring.show(_overall(in_all))
    return {
        **head("deferred", loaded.host.device),
        **identity,
        "dtype": loaded.dtype,
        "rows": [asdict(row) for row in by_position],
        "overall": [asdict(row) for row in in_all],
    }


def _rows(found: Sequence[Row]) -> Table:
    return Table(
        "",
        _ROWS,
        tuple(
            (
                row.arm,
                f"{row.first} to {row.last}",
                f"{row.mean:.3g}",
                f"{row.low:.2g} to {row.high:.2g}",
                *(f"{value:.2g}" for value in (row.p50, row.p95, row.p99, row.largest)),
                f"{row.agreement:.2%}",
                f"{row.agreement_low:.2%} to {row.agreement_high:.2%}",
                str(row.count),
            )
            for row in found
        ),
    )


def _overall(found: Sequence[Overall]) -> Table:
    return Table(
        "",
        _OVERALL,
        tuple(
            (
                row.arm,
                f"{row.growth:+.2g}",
                f"{row.growth_low:+.2g} to {row.growth_high:+.2g}",
                f"{row.same:.0f}",
                f"{row.same_low:.0f} to {row.same_high:.0f}",
                f"{row.never:.0%}",
                f"{row.largest_gap:.2g}",
                f"{row.state_error:.2g}",
                str(row.count),
            )
            for row in found
        ),
    )
