"""Decode from a log beside dense decode, on a tiny random model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from holdover.engine.hf.loader import Loaded, load
from holdover.errors import ConfigError, IntegrityError
from holdover.evaluation.journal import Journal
from holdover.evaluation.protocols.deferred.arms import Arm, arms_of
from holdover.evaluation.protocols.deferred.lane import Lane
from holdover.evaluation.protocols.deferred.rollout import Block, Rollout, Schedule, compare, run
from holdover.evaluation.protocols.deferred.summary import buckets, overall, rows
from holdover.evaluation.protocols.problem import Problem
from holdover.evaluation.retention.session import Session
from tests.helpers import assert_close
from tests.server import tiny

TOKENS = 40
SCHEDULE = Schedule(tokens=TOKENS, batch=2)
ENGINE, NARROW = Arm(8, "fp32", "fp32"), Arm(8, "bf16", "bf16")


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    return load(str(tiny.save(tmp_path_factory.mktemp("tiny") / "model")))


@pytest.fixture(scope="module")
def problems(loaded: Loaded) -> list[Problem]:
    generator = torch.Generator().manual_seed(1)
    lengths = (20, 2, 33)
    drawn = [torch.randint(10, loaded.host.layout.vocab_size, (n,), generator=generator).tolist() for n in lengths]
    return [Problem(str(i), tuple(prompt), "nll") for i, prompt in enumerate(drawn)]


def blocks(
    loaded: Loaded, problems: list[Problem], arms: list[Arm], journal: Journal | None = None
) -> list[dict[Arm, Block]]:
    return list(run(loaded.host, arms, problems, SCHEDULE, Journal(None, {}) if journal is None else journal))


def test_a_log_in_fp32_says_what_dense_decode_says_and_a_narrow_one_less_so(
    loaded: Loaded, problems: list[Problem]
) -> None:
    arms = arms_of(loaded.host.layout.state, [8], ["engine", "bf16/bf16"])
    assert arms == [Arm(), ENGINE, NARROW]
    found = blocks(loaded, problems, arms)
    assert [len(block[ENGINE].rollouts) for block in found] == [2, 1]
    results = {arm: [block[arm] for block in found] for arm in arms}
    for arm in (ENGINE, NARROW):
        # every token goes to the log or folds it, and at an interval of 8 about an eighth fold
        assert sum(block.appended + block.folded for block in results[arm]) == len(problems) * TOKENS
        assert len(problems) * TOKENS // 8 <= sum(block.folded for block in results[arm]) <= len(problems) * 8
    kl = {arm: max(max(one.kl) for block in of for one in block.rollouts) for arm, of in results.items()}
    error = {arm: max(one.state_error for block in of for one in block.rollouts) for arm, of in results.items()}
    assert kl[Arm()] < 1e-10
    assert kl[ENGINE] < 1e-10
    assert kl[NARROW] > 100 * kl[ENGINE]
    assert error[ENGINE] < 1e-5 < error[NARROW] < 1e-1
    assert results[ENGINE][0].slot_bytes > results[NARROW][0].slot_bytes > results[Arm()][0].slot_bytes
    whole = [row for row in rows(results) if (row.first, row.last) == (0, TOKENS)]
    assert [(row.arm, row.agreement, row.count) for row in whole[:2]] == [("prefill", 1, 3), ("m8-fp32/fp32", 1, 3)]


def test_lanes_choose_and_follow_as_a_plain_run_does(loaded: Loaded, problems: list[Problem]) -> None:
    prompts = [problem.prompt for problem in problems[:2]]
    longest = max(map(len, prompts)) + TOKENS
    last = [prompt[-1] for prompt in prompts]
    dense, log = Lane(loaded.host, None, 2, longest), Lane(loaded.host, ENGINE, 2, longest)
    for lane in (dense, log):
        lane.read(prompts)
    tokens, logits = dense.choose(last, TOKENS)
    followed = log.follow(tokens)
    for i, prompt in enumerate(prompts):
        session = Session(loaded.host, longest)
        session.read(prompt[:-1])
        wanted = session.score(tokens[i])
        assert_close("dense", wanted, logits[i], 1e-4)
        assert_close("log", wanted, followed[i], 1e-4)
        # greedy: each token is the most probable one behind those before it
        assert tokens[i] == [prompt[-1], *wanted.argmax(-1).tolist()[:-1]]
        state = [session.native.pool.temporal(layer.index)[session.slot] for layer in loaded.host.layout.state.layers]
        for lane in (dense, log):
            for layer, own in zip(state, lane.states()[i], strict=True):
                assert_close("state", layer, own, 1e-4)


def test_an_interrupted_run_goes_on_and_arms_can_be_added(
    loaded: Loaded, problems: list[Problem], tmp_path: Path
) -> None:
    path = tmp_path / "work.jsonl"
    whole = blocks(loaded, problems, [ENGINE, NARROW])
    with Journal(path, {}) as journal:
        steps = run(loaded.host, [ENGINE], problems, SCHEDULE, journal)
        next(steps)
        steps.close()
    lines = path.read_bytes().splitlines(keepends=True)
    # what is on record is taken as it is, and not run again
    entry = json.loads(lines[1])
    entry["value"]["rollouts"][0]["state_error"] = 123.0
    path.write_bytes(lines[0] + json.dumps(entry).encode() + b"\n")
    with Journal(path, {}, resume=True) as journal:
        resumed = blocks(loaded, problems, [ENGINE, NARROW], journal)
    assert resumed[0][ENGINE].rollouts[0].state_error == 123.0
    assert resumed[0][ENGINE].rollouts[1:] == whole[0][ENGINE].rollouts[1:]
    assert resumed[1] == whole[1]
    assert resumed[0][NARROW] == whole[0][NARROW]


def test_an_arm_whose_log_was_not_used_stops_the_run(loaded: Loaded, problems: list[Problem]) -> None:
    dense, disguised = (Lane(loaded.host, None, 1, 100) for _ in range(2))
    with pytest.raises(IntegrityError, match="0 folded"):
        compare(dense, {ENGINE: disguised}, problems[:1], TOKENS)


def test_what_cannot_be_compared_is_refused(loaded: Loaded, problems: list[Problem]) -> None:
    layout = loaded.host.layout.state
    for intervals, log, message in (
        ([1], "engine", "a merge interval of 1 keeps no log"),
        ([65], "engine", "choose 2 to 64"),
        ([8], "fp8/fp32", "there is no log 'fp8/fp32'"),
        ([8], "bf16", "there is no log 'bf16'"),
    ):
        with pytest.raises(ConfigError, match=message):
            arms_of(layout, intervals, [log])
    with pytest.raises(ConfigError, match="give --steps"):
        blocks(loaded, problems, [Arm(32, "fp32", "fp32")])
    long = replace(problems[0], prompt=tuple(range(10)) * 200)
    with pytest.raises(ConfigError, match="lower --prefix"):
        blocks(loaded, [long], [ENGINE])


def test_figures_by_position_and_in_all() -> None:
    assert buckets(256) == [(0, 16), (16, 32), (32, 64), (64, 128), (128, 256)]
    assert buckets(20) == [(0, 20)]
    kl = tuple([1.0] * 16 + [3.0] * 16)
    first = Rollout("a", kl, (4, 20), (0.5, 0.25), 0.1)
    second = Rollout("b", tuple(2 * value for value in kl), (), (), 0.3)
    results = {ENGINE: [Block((first,), 30, 2, 100), Block((second,), 28, 4, 100)]}
    start, end, whole = rows(results)
    assert [(row.first, row.last) for row in (start, end, whole)] == [(0, 16), (16, 32), (0, 32)]
    assert (start.mean, end.mean, whole.mean) == (1.5, 4.5, 3.0)
    assert (whole.low, whole.high) == (2.0, 4.0)
    assert (whole.p50, whole.largest) == (2.0, 6.0)
    assert (start.agreement, whole.agreement) == (pytest.approx(1 - 1 / 32), pytest.approx(1 - 2 / 64))
    (one,) = overall(results)
    assert (one.growth, one.growth_low, one.growth_high) == (3.0, 2.0, 4.0)
    assert (one.same, one.never, one.largest_gap) == (18.0, 0.5, 0.5)
    assert (one.state_error, one.largest_state_error) == (pytest.approx(0.2), 0.3)
    assert (one.appended, one.folded, one.slot_bytes, one.count) == (58, 6, 100, 2)
