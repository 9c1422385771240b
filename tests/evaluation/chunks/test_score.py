"""Questions over composed contexts, on the bundled model, which can answer them."""

from __future__ import annotations

from functools import cache

import pytest

from holdover.engine.engine import Engine
from holdover.engine.hf.loader import Loaded, load
from holdover.engine.options import EngineOptions
from holdover.engine.sampling import SamplingParams
from holdover.errors import ConfigError, RequestError
from holdover.evaluation.chunks.recall import draw
from holdover.evaluation.chunks.score import Answers, percent_of_full, score
from tests.engine.harness import Bytes


@cache
def bundled() -> Loaded:
    return load("tiny-gdn")


class NoTemplate(Bytes):
    """A tokenizer that renders no conversations."""

    def render(self, messages, /, **options):
        raise RequestError("no chat template")


def test_prompts_hold_the_record_that_is_asked_for_once() -> None:
    loaded = bundled()
    cases = draw(loaded.tokenizer, loaded.end_tokens, 5, chunks=3, tokens=48)
    assert cases == draw(loaded.tokenizer, loaded.end_tokens, 6, chunks=3, tokens=48)[:5]
    assert cases != draw(loaded.tokenizer, loaded.end_tokens, 5, chunks=3, tokens=48, seed=1)
    for case in cases:
        documents = [loaded.tokenizer.decode(chunk) for chunk in case.chunks]
        answer = loaded.tokenizer.decode(case.following)
        assert len(documents) == 3
        assert all(24 < len(chunk) <= 48 for chunk in case.chunks)
        assert all(text.endswith(".\n") for text in documents)
        key = loaded.tokenizer.decode(case.query).split("?")[0].split()[-1]
        lines = [line for text in documents for line in text.splitlines() if f" {answer}." in line]
        assert any(key in line.replace("have", "") for line in lines) or "have" in key
        assert case.following[-1] in loaded.end_tokens
        rendered = loaded.tokenizer.render([{"role": "user", "content": "x"}])
        assert case.parts[0] == tuple(rendered[: len(case.parts[0])])


def test_answers_are_those_that_an_engine_generates() -> None:
    loaded = bundled()
    cases = draw(loaded.tokenizer, loaded.end_tokens, 3, chunks=2, tokens=64)
    *_, found = score(loaded.host, cases, ["none", "prophetkv"], ["last", "exact"], 0.2, loaded.end_tokens)
    arms = {(one.selector, one.initialiser): one for one in found}
    assert arms["all", "-"].right == arms["full", "-"].right == [True] * 3
    assert set(arms) == {("full", "-"), ("all", "-")} | {
        (s, i) for s in ("none", "prophetkv") for i in ("last", "exact")
    }
    assert set(arms["none", "last"].recomputed) == {0.0}
    assert arms["prophetkv", "last"].recomputed == arms["prophetkv", "exact"].recomputed
    engine = Engine(loaded, EngineOptions(max_running=1))
    params = SamplingParams(max_tokens=12, temperature=0.0)
    said = []
    for case in cases:
        output = engine.generate(
            context=case.parts, query=case.query, params=params, selector="prophetkv", initialiser="last", ratio=0.2
        )
        said.append(output.token_ids[:-1] == case.following[:-1])
    assert said == arms["prophetkv", "last"].right


def test_percent_and_interval() -> None:
    full = Answers("full", "-", [True] * 8 + [False] * 2)
    arm = Answers("none", "last", [True] * 4 + [False] * 6)
    percent, low, high = percent_of_full(arm, full)
    assert percent == 50.0
    assert 0 <= low < 50 < high <= 100
    # where both are right together, nothing is left to chance
    assert percent_of_full(full, full) == (100.0, 100.0, 100.0)


def test_models_that_cannot_be_asked() -> None:
    loaded = bundled()
    with pytest.raises(ConfigError, match="no record fits into a chunk of 3 tokens"):
        draw(loaded.tokenizer, loaded.end_tokens, 1, chunks=2, tokens=3)
    with pytest.raises(ConfigError, match="no end token"):
        draw(loaded.tokenizer, frozenset(), 1, chunks=2, tokens=64)
    with pytest.raises(RequestError, match="no chat template"):
        draw(NoTemplate(), frozenset([1]), 1, chunks=2, tokens=64)
