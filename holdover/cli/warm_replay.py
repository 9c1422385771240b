"""The warm-replay protocol of ``holdover eval``: its arms and problems, and what is shown of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from holdover.cli import measuring
from holdover.report.tables import Table

if TYPE_CHECKING:
    from holdover.arch.layout import StateLayout
    from holdover.engine.hf.loader import Loaded
    from holdover.evaluation.journal import Journal
    from holdover.evaluation.protocols.arms import Arm
    from holdover.evaluation.protocols.problem import Problem
    from holdover.evaluation.protocols.summary import Row
    from holdover.evaluation.protocols.warm_replay import Replay, Schedule

_COLUMNS = ("task", "arm", "W_max", "mean", "95 % interval", "to the first", "95 % interval", "hit", "loaded", "n")


def arms_at(loaded: Loaded, kinds: Sequence[str], cutoffs: Sequence[int]) -> list[Arm]:
    """The arms of some kinds, with the model's plans at some cutoffs.

    Raises:
        ConfigError: a kind is unknown.
    """
    from holdover.evaluation.protocols.arms import arms_of
    from holdover.retention.decay import read_decay
    from holdover.retention.plan import RetentionPlan

    assert loaded.files is not None
    decay = read_decay(loaded.files)
    return arms_of(kinds, {cutoff: RetentionPlan.of(decay, cutoff) for cutoff in cutoffs})


def problems_of(
    loaded: Loaded, problems: Path | None, text: Path | None, prefix: int, following: int, limit: int | None
) -> list[Problem]:
    """Problems of a file, or pieces of a text.

    Raises:
        ConfigError: the file cannot be used.
    """
    from holdover.evaluation.protocols.problem import continuations, read_problems
    from holdover.evaluation.retention.prefixes import read_text

    if problems is not None:
        return read_problems(problems, loaded.tokenizer, limit, loaded.host.layout.max_context)
    assert text is not None
    return continuations(loaded.tokenizer.encode(read_text(text)), prefix=prefix, following=following, limit=limit)


def run(
    loaded: Loaded,
    problems: Sequence[Problem],
    arms: Sequence[Arm],
    schedule: Schedule,
    journal_path: Path | None,
    resume: bool,
) -> dict[str, Any]:
    """Run every arm, show what came of it, and return it for a file.

    Raises:
        HoldoverError: a problem does not fit, or a run breaks a condition of the protocol.
    """
    from holdover.evaluation.journal import Journal
    from holdover.evaluation.protocols.problem import digest
    from holdover.evaluation.protocols.results import head
    from holdover.evaluation.protocols.summary import controls, summarise

    # what is only checked afterwards does not change what was measured
    how = {name: value for name, value in asdict(schedule).items() if name != "controlled"}
    identity = measuring.measured_by(loaded, problems=digest(problems), **how)
    with Journal(journal_path, identity, resume=resume) as journal:
        results = {arm: _replays(loaded, arm, problems, schedule, journal) for arm in arms}
    rows = summarise(problems, results)
    masks = controls(arms, rows)
    measuring.show(_table(rows))
    for one in masks:
        spread = f"{one.mean:.4g} ± {one.deviation:.2g}, {one.masks} masks"
        typer.echo(f"{one.task or one.metric}, W_max {one.w_max}: random {spread}")
    return {
        **head("warm-replay", loaded.host.device),
        **identity,
        "arms": {arm.name: _arm_facts(arm, loaded.host.layout.state) for arm in arms},
        "rows": [asdict(row) for row in rows],
        "random": [asdict(one) for one in masks],
    }


def _arm_facts(arm: Arm, layout: StateLayout) -> dict[str, Any]:
    return {"plan": arm.plan.digest if arm.plan is not None else None, "bytes": arm.nbytes(layout)}


def _replays(
    loaded: Loaded, arm: Arm, problems: Sequence[Problem], schedule: Schedule, journal: Journal
) -> list[Replay]:
    from holdover.engine.options import EngineOptions
    from holdover.evaluation.protocols.warm_replay import run_arm

    steps = run_arm(loaded, arm, problems, schedule, EngineOptions(), journal)
    blocks = -(-len(problems) // schedule.block)
    return [one for block in measuring.tracked(steps, blocks, arm.name) for one in block.replays]


def _table(rows: Sequence[Row]) -> Table:
    return Table(
        "",
        _COLUMNS,
        tuple(
            (
                row.task or row.metric,
                row.arm,
                "-" if row.w_max is None else str(row.w_max),
                f"{row.mean:.4g}",
                f"{row.low:.3g} to {row.high:.3g}",
                "-" if row.difference is None else f"{row.difference:+.3g}",
                "-" if row.difference is None else f"{row.difference_low:+.2g} to {row.difference_high:+.2g}",
                f"{row.hit:.3f}",
                f"{row.loaded:.1%}",
                str(row.count),
            )
            for row in rows
        ),
    )
