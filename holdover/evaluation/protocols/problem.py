"""What a protocol asks: problems with right answers, and text whose continuation is given."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from holdover.engine.request import Output
from holdover.engine.sampling import SamplingParams
from holdover.errors import ConfigError
from holdover.evaluation import passages
from holdover.evaluation.protocols.scores import SCORES
from holdover.evaluation.retention.prefixes import read_text

NLL = "nll"


class Identified(Protocol):
    """A problem of whatever kind."""

    @property
    def id(self) -> str:
        """Unique among the problems of a run."""

    def __len__(self) -> int:
        """Tokens of its prompt and answer."""


Asked = TypeVar("Asked", bound=Identified)


class PromptEncoder(Protocol):
    """The parts of a tokenizer that prompts are made with."""

    def encode(self, text: str) -> list[int]:
        """Token ids of ``text``."""

    def render(self, messages: Sequence[Mapping[str, Any]], /, **options: Any) -> list[int]:
        """Token ids of a conversation, ready for the assistant's next turn."""


@dataclass(frozen=True)
class Problem:
    """One instance, which is the statistical unit.

    Attributes:
        id: unique among the problems of a run.
        prompt: its tokens, at least two.
        metric: a name of `SCORES`; or `NLL`, the mean negative log-likelihood in nats of ``following``.
        answers: right answers, at least one unless the metric is `NLL`.
        max_tokens: most tokens of an answer.
        following: tokens that are forced instead of sampling.
        task: what it counts for.
    """

    id: str
    prompt: tuple[int, ...]
    metric: str
    answers: tuple[str, ...] = ()
    max_tokens: int = 32
    following: tuple[int, ...] = ()
    task: str = ""

    def params(self, temperature: float, seed: int) -> SamplingParams:
        """How one replay is sampled."""
        if self.following:
            n = len(self.following)
            return SamplingParams(max_tokens=n, temperature=0.0, forced=self.following, ignore_eos=True, logprobs=0)
        return SamplingParams(max_tokens=self.max_tokens, temperature=temperature, top_p=1.0, top_k=0, seed=seed)

    def score(self, output: Output) -> float:
        """What an output is worth."""
        if self.metric == NLL:
            assert output.logprobs
            return -sum(one.logprob for one in output.logprobs) / len(output.logprobs)
        return SCORES[self.metric](output.text, self.answers)

    def __len__(self) -> int:
        return len(self.prompt) + max(self.max_tokens, len(self.following))


def digest(asked: Sequence[object]) -> str:
    """Identifies problems of whatever kind, whose `repr` says all of them."""
    return hashlib.sha256("\n".join(map(repr, asked)).encode()).hexdigest()[:32]


def read_problems(
    path: Path, encoder: PromptEncoder, limit: int | None = None, context: int | None = None
) -> list[Problem]:
    """Problems of a file of JSON lines: ``messages`` or ``prompt``, ``answers``; optional are ``id``, ``task``,
    ``metric`` (``exact`` if unset) and ``max_tokens``. See `read_rows` for sets that have names.

    Raises:
        ConfigError: the file cannot be read, or a line is no problem.
    """
    return read_rows(path, lambda row, number: _problem(row, encoder, number), limit, context)


def read_rows(
    path: Path,
    parse: Callable[[Mapping[str, Any], int], Asked],
    limit: int | None = None,
    context: int | None = None,
) -> list[Asked]:
    """Problems of a file of JSON lines, or of a set of questions about passages.

    Args:
        path: the file, or the set's name.
        parse: makes a problem of a line's object and its number, from 1; what it raises says what is wrong.
        limit: most problems; None for all.
        context: most tokens of a problem of a set, where longer ones are left out; None for any.

    Raises:
        ConfigError: the file cannot be read, the set is not installed, a line is no problem, or two have one id.
    """
    found: list[Asked] = []
    is_set = str(path) in passages.SETS and not path.exists()
    # a JSON text may hold other ends of lines, which `splitlines` would cut it at
    lines: Iterable[Any] = passages.rows(str(path)) if is_set else filter(str.strip, read_text(path).split("\n"))
    for number, line in enumerate(lines, start=1):
        if limit is not None and len(found) == limit:
            break
        try:
            one = parse(line if is_set else json.loads(line), number)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"{path}, problem {number}: {type(error).__name__}: {error}") from error
        if not is_set or context is None or len(one) <= context:
            found.append(one)
    if len({problem.id for problem in found}) < len(found):
        raise ConfigError(f"{path} has an id twice")
    if not found:
        raise ConfigError(f"{path} holds no problem")
    return found


def continuations(tokens: Sequence[int], *, prefix: int, following: int, limit: int | None) -> list[Problem]:
    """Consecutive pieces of a text, the end of each given: what it loses is perplexity.

    Args:
        tokens: the text.
        prefix: tokens that are cached.
        following: tokens behind them that are scored.
        limit: most pieces; None for all.

    Raises:
        ConfigError: the text is shorter than one piece.
    """
    piece = prefix + following
    count = len(tokens) // piece if limit is None else min(limit, len(tokens) // piece)
    if not count:
        raise ConfigError(f"the text has {len(tokens)} tokens and a piece is {piece}: give a longer one, or --prefix")
    return [_piece(tokens[i * piece : (i + 1) * piece], prefix, i) for i in range(count)]


def batches(problems: Sequence[Problem], size: int) -> Iterator[Sequence[Problem]]:
    """Blocks of so many problems, in order."""
    return (problems[i : i + size] for i in range(0, len(problems), size))


def _problem(row: Mapping[str, Any], encoder: PromptEncoder, number: int) -> Problem:
    prompt = encoder.render(row["messages"]) if "messages" in row else encoder.encode(row["prompt"])
    metric, answers = row.get("metric", "exact"), row["answers"]
    if metric not in SCORES:
        raise ValueError(f"there is no metric {metric!r}; choose among {', '.join(SCORES)}")
    if not answers or isinstance(answers, str) or not all(isinstance(one, str) for one in answers):
        raise ValueError("answers is no list of texts")
    if len(prompt) < 2:
        raise ValueError("a prompt needs two tokens, one of them to be cached")
    return Problem(
        id=str(row.get("id", number)),
        prompt=tuple(prompt),
        metric=metric,
        answers=tuple(answers),
        max_tokens=int(row.get("max_tokens", 32)),
        task=str(row.get("task", "")),
    )


def _piece(tokens: Sequence[int], prefix: int, number: int) -> Problem:
    return Problem(f"piece-{number}", tuple(tokens[:prefix]), NLL, following=tuple(tokens[prefix:]), task="text")
