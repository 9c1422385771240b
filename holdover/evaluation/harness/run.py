"""Running tasks of the harness on an engine."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from lm_eval.evaluator import evaluate

from holdover.evaluation.harness.model import HarnessModel

_SEED = 1234
_RESAMPLES = 1000


@dataclass(frozen=True)
class Row:
    """One figure of one task.

    Attributes:
        task: the task.
        length: tokens of its generated prompts; None where they are not.
        metric: what is measured.
        filter: what is taken from an answer before.
        value: the mean, or what the task makes of the answers.
        stderr: its standard error over the task's documents; None where the harness gives none.
        count: documents.
    """

    task: str
    length: int | None
    metric: str
    filter: str
    value: float
    stderr: float | None
    count: int


def seed() -> None:
    """Make what tasks draw the same every time. Generated prompts depend on the order of loading too."""
    random.seed(_SEED)
    np.random.seed(_SEED)


def run(model: HarnessModel, loaded: dict[str, Any], *, limit: int | None, length: int | None, chat: bool) -> list[Row]:
    """Evaluate loaded tasks.

    Args:
        model: answers their requests.
        loaded: what `Tasks.load` gave.
        limit: documents of each task, from the first on; None for all.
        length: tokens of their generated prompts.
        chat: whether prompts are asked as a user's message.

    Raises:
        ConfigError: a request does not fit into the model's context.
    """
    for task in loaded["tasks"].values():
        if task.get_config("num_fewshot") is None:
            task.set_config(key="num_fewshot", value=0)
        task.set_fewshot_seed(seed=_SEED)
    results = evaluate(
        model,
        loaded,
        limit=limit,
        bootstrap_iters=_RESAMPLES,
        log_samples=False,
        apply_chat_template=chat,
        fewshot_as_multiturn=chat,
    )
    assert results is not None
    return [
        row for name in loaded["tasks"] for row in _rows(name, length, results["results"][name], results["n-samples"])
    ]


def _rows(task: str, length: int | None, figures: Mapping[str, Any], counts: Mapping[str, Any]) -> Sequence[Row]:
    rows = []
    for key, value in figures.items():
        metric, _, chosen = key.partition(",")
        # the harness has a metric for each of RULER's lengths, whether it was asked for or not
        other = length is not None and metric.isdecimal() and metric != str(length)
        if not chosen or other or metric.endswith("_stderr") or not isinstance(value, (int, float)):
            continue
        error = figures.get(f"{metric}_stderr,{chosen}")
        rows.append(
            Row(
                task=task,
                length=length,
                metric="match" if metric.isdecimal() else metric,
                filter=chosen,
                value=float(value),
                stderr=float(error) if isinstance(error, (int, float)) else None,
                count=counts[task]["effective"],
            )
        )
    return rows
