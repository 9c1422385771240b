"""Resuming prefixes of which a part was set to zero."""

from __future__ import annotations

import random

import pytest
import torch

from holdover.engine.hf.loader import Loaded, load
from holdover.errors import IntegrityError
from holdover.evaluation.retention import intervention
from holdover.evaluation.retention.intervention import ARMS, DEPTHS, Score, draw_needles, intervene
from holdover.evaluation.retention.needles import make_needle
from holdover.weights.bundled import DEFAULT_MODEL
from tests.server import tiny

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def bundled() -> Loaded:
    return load(DEFAULT_MODEL)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    return load(str(tiny.save(tmp_path_factory.mktemp("tiny") / "model")))


def last(loaded: Loaded, needles: list) -> dict[str, Score]:
    *_, scores = intervene(loaded, needles)
    return {score.arm: score for score in scores}


@pytest.mark.parametrize("depth", DEPTHS)
def test_a_needle_stands_where_it_should_and_is_asked_for_behind_the_prefix(bundled: Loaded, depth: float) -> None:
    needle = make_needle(bundled.tokenizer, random.Random(3), depth, 200)
    parts = needle.tokens[: needle.shared], needle.tokens[needle.shared :]
    shared, rest = map(bundled.tokenizer.decode, parts)
    assert needle.answer in shared
    assert needle.answer not in rest
    assert "What is the code for box" in rest
    before, after = shared.split(needle.answer)
    assert len(before) / (len(before) + len(after)) == pytest.approx(depth, abs=0.1)
    assert 150 < needle.shared < 250


def test_retrieval_rests_on_attention(bundled: Loaded) -> None:
    scores = last(bundled, draw_needles(bundled, 60, 1)[2:3])
    assert tuple(scores) == ARMS
    assert scores["baseline"].accuracy == 1.0
    assert scores["zero-full-kv"].accuracy == scores["zero-both"].accuracy == 0.0
    assert scores["zero-linear"].accuracy == 1.0


def test_every_arm_resumes_the_whole_prefix(small: Loaded) -> None:
    needles = draw_needles(small, 20, 1)
    for score in last(small, needles).values():
        assert score.resumed == sum(needle.shared for needle in needles)
        assert score.prompt == sum(len(needle.tokens) for needle in needles)
        assert score.asked == dict.fromkeys(DEPTHS, 1)


def test_arms_zero_what_they_say(small: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    zeroed = {}
    original = intervention._zero

    def spy(cache, arm) -> None:
        original(cache, arm)
        pool = cache.tiers.native.pool
        states = [t for checkpoint in cache.tiers.order for t in pool.tensors_of(checkpoint.slot)]
        rows = cache.kv.num_rows - cache.kv.num_free
        planes = [plane[1 : rows + 1] for layer in cache.kv.layout.layers for plane in cache.kv.planes(layer.index)]
        assert states
        assert rows
        zeroed[arm] = (not any(t.any() for t in planes), not any(t.any() for t in states))

    monkeypatch.setattr(intervention, "_zero", spy)
    last(small, draw_needles(small, 60, 1)[:1])
    assert zeroed == {
        "baseline": (False, False),
        "zero-full-kv": (True, False),
        "zero-linear": (False, True),
        "zero-both": (True, True),
    }


def test_a_question_that_does_not_hit_is_no_measurement(small: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intervention, "_zero", lambda cache, _: cache.flush())
    with pytest.raises(IntegrityError, match="baseline: wanted a hit at"):
        last(small, draw_needles(small, 60, 1))
