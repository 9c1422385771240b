"""What a harness asks of an engine, and how all of it is asked: from the cache, in batches, each answer kept."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice

from holdover.engine.engine import Engine
from holdover.engine.request import Output
from holdover.engine.sampling import SamplingParams
from holdover.errors import ConfigError
from holdover.evaluation.journal import Journal

# a request for the prompt alone would leave no checkpoint
_UNSCORED = SamplingParams(max_tokens=1, temperature=0.0)


@dataclass(frozen=True)
class Question:
    """One request.

    Attributes:
        prompt: its tokens.
        params: how it is continued.
        scored: last tokens of the prompt whose likelihood is wanted; such a prompt is run without the cache.
    """

    prompt: tuple[int, ...]
    params: SamplingParams
    scored: int = 0


@dataclass(frozen=True)
class Answer:
    """What came of it.

    Attributes:
        text: what was generated.
        logprob: log-likelihood in nats of the tokens that were forced, or scored.
        is_greedy: whether each forced token was the most likely one.
        cached: tokens of the prompt that were resumed.
        new: the others.
    """

    text: str
    logprob: float
    is_greedy: bool
    cached: int
    new: int


class Asker:
    """Asks an engine, and records every answer in a journal.

    Where checkpoints are packed, a prompt is first run unscored, so that every answer is given from what the cache
    keeps; likewise where several questions are about one prompt.

    Args:
        engine: set up as `residency.replayable` says.
        journal: answers by question.
        progress: told the number of questions that are done, as they are.
    """

    def __init__(self, engine: Engine, journal: Journal, progress: Callable[[int], None] = lambda count: None) -> None:
        self._engine = engine
        self._journal = journal
        self._progress = progress
        self.cached = 0
        self.new = 0

    @property
    def hit(self) -> float:
        """Share of the prompts' tokens that was resumed from the cache, of all that was asked."""
        return self.cached / max(1, self.cached + self.new)

    def ask(self, questions: Sequence[Question]) -> list[Answer]:
        """Answers, in the order of the questions.

        Raises:
            ConfigError: a question is longer than the context; nothing was asked.
        """
        for question in questions:
            self._check(question)
        keys = _keys(questions)
        missing = {key: question for key, question in zip(keys, questions, strict=True) if key not in self._journal}
        self._progress(len(questions) - len(missing))
        for batch in _batches(missing, self._engine.options.max_running):
            self._journal.add({key: asdict(answer) for key, answer in self._answer(batch).items()})
            self._progress(len(batch))
        answers = [Answer(**self._journal[key]) for key in keys]
        self.cached += sum(answer.cached for answer in answers)
        self.new += sum(answer.new for answer in answers)
        return answers

    def _answer(self, batch: dict[str, Question]) -> dict[str, Answer]:
        asked = Counter(question.prompt for question in batch.values() if not question.scored)
        warm = [prompt for prompt, count in asked.items() if count > 1 or self._engine.options.is_compressed]
        if warm:
            self._engine.generate(warm, _UNSCORED)
        questions = list(batch.values())
        outputs = self._engine.generate([q.prompt for q in questions], [q.params for q in questions])
        return {key: _read(output, batch[key]) for key, output in zip(batch, outputs, strict=True)}

    def _check(self, question: Question) -> None:
        wanted, most = question.params.max_tokens or 0, self._engine.prepare.max_context
        if len(question.prompt) + wanted > most:
            raise ConfigError(
                f"a prompt has {len(question.prompt)} tokens and {wanted} more may follow, but the context is {most}: "
                "choose shorter --lengths or a task that fits"
            )


def _read(output: Output, question: Question) -> Answer:
    scored = output.logprobs or ()
    if question.scored:
        assert output.prompt_logprobs is not None
        scored = tuple(one for one in output.prompt_logprobs[-question.scored :] if one is not None)
    return Answer(
        text=output.text,
        logprob=sum(one.logprob for one in scored),
        is_greedy=all(one.token == one.top[0][0] for one in scored if one.top),
        cached=output.cache.state_depth,
        new=output.cache.prompt_tokens - output.cache.state_depth,
    )


def _keys(questions: Sequence[Question]) -> list[str]:
    """A key for each; the same question asked again has another one, since it may be answered otherwise."""
    seen: Counter[str] = Counter()
    keys = []
    for question in questions:
        key = hashlib.sha256(repr(question).encode()).hexdigest()[:32]
        keys.append(f"{key}-{seen[key]}")
        seen[key] += 1
    return keys


def _batches(questions: dict[str, Question], prompts: int) -> Iterator[dict[str, Question]]:
    """All questions about so many prompts at a time, in the order in which the prompts first occur."""
    by_prompt: dict[tuple[int, ...], dict[str, Question]] = {}
    for key, question in questions.items():
        by_prompt.setdefault(question.prompt, {})[key] = question
    groups = iter(by_prompt.values())
    while part := list(islice(groups, prompts)):
        yield {key: question for group in part for key, question in group.items()}
