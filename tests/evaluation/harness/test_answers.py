"""Questions of a harness, asked through the cache and kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdover.engine.engine import Engine
from holdover.engine.hf.loader import Loaded, load
from holdover.engine.options import EngineOptions
from holdover.engine.sampling import SamplingParams
from holdover.errors import ConfigError
from holdover.evaluation.harness.answers import Asker, Question
from holdover.evaluation.journal import Journal
from holdover.evaluation.residency import replayable
from tests.server import tiny

CONTEXTS = [tuple(range(20, 40)), tuple(range(50, 65))]


def forcing(*tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=len(tokens), temperature=0.0, forced=tokens, ignore_eos=True, logprobs=1)


QUESTIONS = [Question(context, forcing(*after)) for context in CONTEXTS for after in ((7, 8), (9,), (12, 13, 14))]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    return load(str(tiny.save(tmp_path_factory.mktemp("tiny") / "model")))


def engine_of(loaded: Loaded, **options: Any) -> Engine:
    return Engine(loaded, replayable(EngineOptions(max_running=4, **options)))


def scored(loaded: Loaded, question: Question) -> tuple[float, bool]:
    """By one pass over everything, without a cache."""
    tokens = (*question.prompt, *question.params.forced)
    with Engine(loaded, EngineOptions(max_running=1)) as engine:
        output = engine.generate([tokens], SamplingParams(max_tokens=0, prompt_logprobs=1), use_cache=False)[0]
    assert output.prompt_logprobs is not None
    last = [one for one in output.prompt_logprobs[-len(question.params.forced) :] if one is not None]
    return sum(one.logprob for one in last), all(one.token == one.top[0][0] for one in last)


def test_continuations_share_the_state_of_their_context(loaded: Loaded) -> None:
    with engine_of(loaded) as engine:
        asker = Asker(engine, Journal(None, {}))
        answers = asker.ask(QUESTIONS)
    for question, answer in zip(QUESTIONS, answers, strict=True):
        logprob, is_greedy = scored(loaded, question)
        assert (answer.logprob, answer.is_greedy) == (pytest.approx(logprob, rel=1e-4), is_greedy)
        assert (answer.cached, answer.new) == (len(question.prompt) - 1, 1)
    assert asker.hit == pytest.approx(1 - 6 / (3 * 20 + 3 * 15))


def test_a_single_question_is_asked_from_a_packed_state_too(loaded: Loaded) -> None:
    with engine_of(loaded, element="int8") as engine:
        (answer,) = Asker(engine, Journal(None, {})).ask(QUESTIONS[:1])
        assert engine.core.stats.hits["compressed"] == 1
    exact, _ = scored(loaded, QUESTIONS[0])
    assert answer.cached == 19
    assert answer.logprob == pytest.approx(exact, rel=0.05)
    assert answer.logprob != exact


def test_what_was_answered_is_not_asked_again(loaded: Loaded, tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    sampled = Question(CONTEXTS[0], SamplingParams(max_tokens=4, temperature=1.0, seed=3))
    questions = [*QUESTIONS[:3], sampled, sampled]
    with engine_of(loaded) as engine:
        with Journal(path, {}) as journal:
            first = Asker(engine, journal).ask(questions[:2])
        with Journal(path, {}, resume=True) as journal:
            assert len(journal) == 2
            done: list[int] = []
            answers = Asker(engine, journal, done.append).ask(questions)
            # two that were there, then the three others, one of them asked twice
            assert done == [2, 3]
            assert len(journal) == 5
    assert answers[:2] == first
    with engine_of(loaded) as engine, Journal(path, {}, resume=True) as journal:
        assert Asker(engine, journal).ask(questions) == answers
        assert engine.core.stats.prompt_tokens == 0


def test_tokens_of_a_prompt_are_scored_in_one_pass(loaded: Loaded) -> None:
    tokens, params = (*CONTEXTS[0], 7, 8), SamplingParams(max_tokens=0, prompt_logprobs=0)
    with engine_of(loaded) as engine:
        (answer,) = Asker(engine, Journal(None, {})).ask([Question(tokens, params, 2)])
    assert answer.logprob == pytest.approx(scored(loaded, QUESTIONS[0])[0], rel=1e-4)
    assert answer.cached == 0


def test_questions_that_do_not_fit_are_refused_before_any_is_asked(loaded: Loaded) -> None:
    long = Question(tuple([5] * 1020), SamplingParams(max_tokens=5))
    with engine_of(loaded) as engine:
        with pytest.raises(ConfigError, match="1020 tokens and 5 more may follow, but the context is 1024"):
            Asker(engine, Journal(None, {})).ask([*QUESTIONS, long])
        assert engine.core.stats.prompt_tokens == 0
