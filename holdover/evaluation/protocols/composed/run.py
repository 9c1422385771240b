"""Runs a design over problems; what a journal has is not run again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from holdover.engine.chunks.gate import extras_for
from holdover.engine.host import Host
from holdover.evaluation.chunks.bench import Workbench
from holdover.evaluation.chunks.case import Case
from holdover.evaluation.journal import Journal
from holdover.evaluation.protocols.composed.answers import Answer, ask
from holdover.evaluation.protocols.composed.design import Design
from holdover.evaluation.protocols.composed.layers import compare
from holdover.evaluation.protocols.composed.problem import ChunkedProblem

# by arm
Answers = Mapping[str, Answer]
# by arm, part and layer
Errors = Mapping[str, Mapping[str, Mapping[str, float]]]


def run_answers(
    host: Host, problems: Sequence[ChunkedProblem], design: Design, end_tokens: frozenset[int], journal: Journal
) -> Iterator[Answers]:
    """Ask every problem in every arm; yields its answers by arm.

    Args:
        host: the model.
        problems: what is asked.
        design: the arms.
        end_tokens: each of them ends an answer.
        journal: finished problems.

    Raises:
        ConfigError: a problem does not fit into the model's context.
    """

    def asked(bench: Workbench, case: Case, number: int) -> dict[str, Any]:
        return ask(bench, case, number, design, end_tokens)

    for entry in _run(host, problems, design, asked, "answers", journal):
        yield {arm: Answer(**fields) for arm, fields in entry.items()}


def run_layers(host: Host, problems: Sequence[ChunkedProblem], design: Design, journal: Journal) -> Iterator[Errors]:
    """Compare every layer in every problem; yields its errors by arm, part and layer.

    Text around chunks is taken into them: what is constructed is then the state of the whole context.

    Args:
        host: the model.
        problems: whose contexts are composed.
        design: the arms.
        journal: finished problems.

    Raises:
        ConfigError: a problem does not fit into the model's context.
    """

    def compared(bench: Workbench, case: Case, number: int) -> dict[str, Any]:
        return compare(bench, case, number, design)

    bare = [replace(problem, case=problem.case.without_text()) for problem in problems]
    yield from _run(host, bare, design, compared, "layers", journal)


def _run(
    host: Host,
    problems: Sequence[ChunkedProblem],
    design: Design,
    measure: Callable[[Workbench, Case, int], dict[str, Any]],
    kind: str,
    journal: Journal,
) -> Iterator[Any]:
    bench: Workbench | None = None
    for number, problem in enumerate(problems):
        key = f"{kind}/{problem.id}"
        if key not in journal:
            extras = extras_for(design.initialisers, [design.conv_window])
            bench = bench or Workbench(host, [one.case for one in problems], extras)
            journal.add({key: measure(bench, problem.case, number)})
        yield journal[key]
