"""Tasks of the LM evaluation harness in ``holdover eval``: found before the model is loaded, asked, and shown."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from holdover.arch.registry import layout_from_config
from holdover.cli import loading, measuring
from holdover.errors import ConfigError
from holdover.report.tables import Table
from holdover.weights.source import resolve

if TYPE_CHECKING:
    from holdover.engine.engine import Engine
    from holdover.evaluation.harness.run import Row

_COLUMNS = ("task", "length", "metric", "filter", "value", "stderr", "n")


@dataclass(frozen=True)
class Part:
    """Tasks that are asked together.

    Attributes:
        length: tokens of their generated prompts; None where they are not generated.
        loaded: the tasks, as the harness takes them.
    """

    length: int | None
    loaded: dict[str, Any]


def find(model: str, names: Sequence[str], lengths: str | None, include: Path | None) -> list[Part]:
    """Tasks and their data. All that can be wrong with them is said here, without the model.

    Raises:
        HoldoverError: lm-eval, a task, a package or data are missing, a length cannot be, or there is no such model.
    """
    if importlib.util.find_spec("lm_eval") is None:
        raise ConfigError("lm-eval is missing, whose tasks these are: pip install 'holdover[eval]'")
    if include is not None and not include.is_dir():
        raise ConfigError(f"--include is {include}, which is no directory")
    files = resolve(model)
    context = layout_from_config(files.config).max_context
    with loading.progress(measuring.console(), f"finding {', '.join(names)}"), _quiet():
        from holdover.evaluation.harness.run import seed
        from holdover.evaluation.harness.tasks import RULER, Tasks, check_lengths, default_length

        generated, others = [n for n in names if n in RULER], [n for n in names if n not in RULER]
        sizes: list[int] = []
        if generated:
            sizes = [default_length(context)] if lengths is None else measuring.numbers(lengths, "--lengths")
            check_lengths(sizes, context)
        tasks = Tasks(files.path, include)
        tasks.check(names)
        parts = []
        for chosen, length in [*((generated, size) for size in sizes), *([(others, None)] if others else [])]:
            seed()
            parts.append(Part(length, tasks.load(chosen, length)))
    return parts


def run(
    engine: Engine, parts: Sequence[Part], limit: int | None, chat: bool, journal_path: Path | None, resume: bool
) -> dict[str, Any]:
    """Ask everything, show what came of it, and return it for a file.

    Raises:
        HoldoverError: a request does not fit into the context, or the journal cannot be used.
    """
    from holdover.evaluation.harness.answers import Asker
    from holdover.evaluation.harness.model import HarnessModel
    from holdover.evaluation.harness.run import run as ask
    from holdover.evaluation.harness.run import seed
    from holdover.evaluation.journal import Journal

    options = engine.options
    plan = options.plan.digest if options.plan is not None else None
    identity = measuring.measured_by(
        engine.loaded, plan=plan, refresh=options.refresh, element=options.element, chat=chat
    )
    rows: list[Row] = []
    with Journal(journal_path, identity, resume=resume) as journal:
        asker = Asker(engine, journal)
        model = HarnessModel(engine, asker, chat=chat)
        for part in parts:
            seed()
            names = ", ".join(part.loaded["tasks"])
            with loading.progress(measuring.console(), f"asking {names}"), _quiet():
                rows += ask(model, part.loaded, limit=limit, length=part.length, chat=chat)
    measuring.show(_table(rows))
    typer.echo(f"{asker.hit:.1%} of {asker.cached + asker.new:,} prompt tokens came from the cache")
    versions = {"lm_eval": version("lm_eval"), "limit": limit}
    return {**identity, **versions, "hit": asker.hit, "rows": [asdict(row) for row in rows]}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the harness's warnings to itself, its bars to terminals, and what it prints out of the output."""
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")
    if not sys.stderr.isatty():
        # read when tqdm is imported
        os.environ.setdefault("TQDM_DISABLE", "1")
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    with contextlib.redirect_stdout(sys.stderr):
        yield


def _table(rows: Sequence[Row]) -> Table:
    return Table(
        "",
        _COLUMNS,
        tuple(
            (
                row.task,
                "-" if row.length is None else str(row.length),
                row.metric,
                row.filter,
                f"{row.value:.4g}",
                "-" if row.stderr is None else f"{row.stderr:.2g}",
                str(row.count),
            )
            for row in rows
        ),
    )
