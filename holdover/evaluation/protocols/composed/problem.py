"""What the protocol asks: questions about documents, each a chunk or more of its prompt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdover.evaluation.chunks.case import Case
from holdover.evaluation.chunks.question import Framing, Question
from holdover.evaluation.protocols.problem import read_rows


@dataclass(frozen=True)
class ChunkedProblem:
    """One instance, which is the statistical unit.

    Attributes:
        id: unique among the problems of a run.
        case: its prompt, followed by the right answer with an end token.
        task: what it counts for.
    """

    id: str
    case: Case
    task: str = ""

    def __len__(self) -> int:
        return len(self.case)


def drawn(framing: Framing, questions: list[Question], tokens: int) -> list[ChunkedProblem]:
    """Problems of questions that were drawn."""
    return [ChunkedProblem(f"recall-{i}", framing.case(one, tokens), "recall") for i, one in enumerate(questions)]


def read_chunked(
    path: Path, framing: Framing, tokens: int, limit: int | None = None, context: int | None = None
) -> list[ChunkedProblem]:
    """Problems of a file of JSON lines: ``chunks``, a list of texts; ``question``, which with them is a user's message,
    or ``query``, which follows them as it is; ``answers``, of which the first counts; optional are ``id`` and ``task``.
    See `read_rows` for sets that have names.

    Args:
        path: the file.
        framing: makes prompts of them.
        tokens: most tokens of a chunk; longer texts are cut.
        limit: most problems; None for all.
        context: most tokens of a problem of a set, where longer ones are left out; None for any.

    Raises:
        ConfigError: the file cannot be read, or a line is no problem.
        RequestError: a question needs a chat template, and the model has none.
    """
    return read_rows(path, lambda row, number: _problem(row, framing, tokens, number), limit, context)


def _problem(row: Mapping[str, Any], framing: Framing, tokens: int, number: int) -> ChunkedProblem:
    is_chat = "question" in row
    documents, asks, answers = row["chunks"], row["question" if is_chat else "query"], row["answers"]
    for name, texts in (("chunks", documents), ("answers", answers), ("question or query", [asks])):
        if not isinstance(texts, list) or not texts or not all(isinstance(one, str) and one for one in texts):
            raise ValueError(f"{name}: wanted texts, none of them empty")
    case = framing.case(Question(tuple(documents), asks, answers[0], is_chat), tokens)
    return ChunkedProblem(str(row.get("id", number)), case, str(row.get("task", "")))
