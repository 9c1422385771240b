"""The protocol on a tiny random model: what is scored, counted, compared and resumed."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from holdover.engine.engine import Engine
from holdover.engine.hf.loader import Loaded, load
from holdover.engine.options import EngineOptions
from holdover.engine.sampling import SamplingParams
from holdover.errors import ConfigError
from holdover.evaluation.journal import Journal
from holdover.evaluation.protocols.arms import SEEDS, Arm, arms_of
from holdover.evaluation.protocols.problem import Problem, continuations, digest, read_problems
from holdover.evaluation.protocols.summary import controls, summarise
from holdover.evaluation.protocols.warm_replay import Block, Replay, Schedule, run_arm
from holdover.retention.decay import read_decay
from holdover.retention.plan import RetentionPlan
from tests.server import tiny

SCHEDULE = Schedule(replays=2, block=2, concurrency=2, controlled=True)
ALL = ("dense", "nr", "wr", "int8", "nr+int8", "random")


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    return load(str(tiny.save(tmp_path_factory.mktemp("tiny") / "model")))


@pytest.fixture(scope="module")
def plan(loaded: Loaded) -> RetentionPlan:
    assert loaded.files is not None
    plan = RetentionPlan.of(read_decay(loaded.files), 4)
    # half of the units, whatever the random weights say, so that every arm differs
    retained = tuple(torch.arange(len(mask)) % 2 == 0 for mask in plan.retained)
    return RetentionPlan(plan.model, plan.layout, 4, plan.gate, plan.gate_input, plan.epsilon, plan.horizons, retained)


@pytest.fixture(scope="module")
def problems(loaded: Loaded) -> list[Problem]:
    generator = torch.Generator().manual_seed(1)
    text = torch.randint(10, loaded.host.layout.vocab_size, (3 * 24,), generator=generator).tolist()
    return continuations(text, prefix=20, following=4, limit=None)


def blocks(loaded: Loaded, arm: Arm, problems: list[Problem], journal: Journal | None = None) -> list[Block]:
    return list(
        run_arm(loaded, arm, problems, SCHEDULE, EngineOptions(), Journal(None, {}) if journal is None else journal)
    )


def test_every_arm_resumes_every_prompt_from_its_own_tier(
    loaded: Loaded, plan: RetentionPlan, problems: list[Problem]
) -> None:
    arms = arms_of(ALL, {4: plan})
    assert [arm.seed for arm in arms if arm.kind == "random"] == list(SEEDS)
    results = {}
    for arm in arms:
        found = blocks(loaded, arm, problems)
        # two blocks of at most two problems, each replayed twice
        assert [len(block.replays) for block in found] == [4, 2]
        assert all((one.cached, one.new) == (19, 1) for block in found for one in block.replays), arm.name
        assert {block.evicted for block in found} == {0}
        results[arm] = [one for block in found for one in block.replays]
    by_name = {arm.name: [one.score for one in replays] for arm, replays in results.items()}
    # of six masks of two units, the five seeds may draw one twice
    once = [tuple(scores) for name, scores in by_name.items() if not name.startswith("random")]
    assert len(set(once)) == 5, "two arms gave the same"
    rows = summarise(problems, results)
    assert [row.arm for row in rows[:6]] == ["dense", "nr", "wr", "int8", "nr+int8", "random(1234)"]
    assert {(row.count, row.replays, row.loaded) for row in rows} == {(3, 2, 1.0)}
    assert {row.hit for row in rows} == {19 / 20}
    (control,) = controls(arms, rows)
    assert control.masks == 5
    assert control.mean == pytest.approx(sum(row.mean for row in rows[5:]) / 5)


@pytest.mark.parametrize("kind", ["dense", "nr"])
def test_prompts_that_share_beginnings_have_the_same_room_in_every_arm(
    kind: str, loaded: Loaded, plan: RetentionPlan, problems: list[Problem]
) -> None:
    # every prompt but the first branches off the one before it, at a depth of its own
    stem = problems[0].prompt
    prompts = [(*stem[: 20 - 2 * i], *(token + i for token in stem[20 - 2 * i :])) for i in range(8)]
    asked = [Problem(str(i), prompt, "nll", following=stem[:4]) for i, prompt in enumerate(prompts)]
    schedule = Schedule(replays=2, block=4, concurrency=1)
    (arm,) = arms_of([kind], {4: plan})
    found = list(run_arm(loaded, arm, asked, schedule, EngineOptions(), Journal(None, {})))
    assert [(block.evicted, len(block.replays)) for block in found] == [(0, 8), (0, 8)]
    assert {(one.cached, one.new) for block in found for one in block.replays} == {(19, 1)}


def test_dense_replays_score_what_an_uncached_model_does(loaded: Loaded, problems: list[Problem]) -> None:
    found = blocks(loaded, Arm("dense"), problems)
    with Engine(loaded, EngineOptions(max_running=1)) as engine:
        for problem in problems:
            whole = problem.prompt + problem.following
            output = engine.generate([whole], SamplingParams(max_tokens=0, prompt_logprobs=0), use_cache=False)[0]
            assert output.prompt_logprobs is not None
            wanted = -sum(one.logprob for one in output.prompt_logprobs[-4:] if one is not None) / 4
            scores = [one.score for block in found for one in block.replays if one.problem == problem.id]
            assert scores == pytest.approx([wanted, wanted], rel=1e-4)


def test_an_interrupted_arm_goes_on_with_the_next_block(
    loaded: Loaded, plan: RetentionPlan, problems: list[Problem], tmp_path: Path
) -> None:
    path, arm = tmp_path / "work.jsonl", Arm("nr", plan)
    whole = blocks(loaded, arm, problems)
    with Journal(path, {}) as journal:
        steps = run_arm(loaded, arm, problems, SCHEDULE, EngineOptions(), journal)
        first = next(steps)
        steps.close()
    lines = path.read_bytes().splitlines(keepends=True)
    # what is on record is taken as it is, and not run again
    entry = json.loads(lines[1])
    entry["value"]["replays"][0]["score"] = 123.0
    path.write_bytes(lines[0] + json.dumps(entry).encode() + b"\n")
    with Journal(path, {}, resume=True) as journal:
        resumed = blocks(loaded, arm, problems, journal)
    assert first.replays == whole[0].replays
    assert resumed[0].replays[0].score == 123.0
    assert resumed[1] == whole[1]


def test_controlled_runs_stop_at_a_block_that_was_not_resident(
    loaded: Loaded, plan: RetentionPlan, problems: list[Problem]
) -> None:
    arm, journal = Arm("nr", plan), Journal(None, {})
    journal.add({f"{arm.name}/0": {"replays": [vars(Replay("piece-0", 1.0, 0, 20))], "evicted": 0}})
    with pytest.raises(ConfigError, match=r"token hit 0\.000, 0\.0% loaded"):
        blocks(loaded, arm, problems, journal)
    journal.add({f"{arm.name}/0": {"replays": [vars(Replay("piece-0", 1.0, 19, 1))], "evicted": 2}})
    with pytest.raises(ConfigError, match="2 checkpoints were evicted in replay"):
        blocks(loaded, arm, problems, journal)


def test_problems_too_long_and_arms_without_a_cutoff_are_refused(loaded: Loaded, problems: list[Problem]) -> None:
    long = Problem("long", tuple(range(10)) * 200, "exact", ("x",))
    with pytest.raises(ConfigError, match="does not fit into the context"):
        blocks(loaded, Arm("dense"), [long])
    with pytest.raises(ConfigError, match="needs a retention cutoff"):
        arms_of(["nr"], {})
    with pytest.raises(ConfigError, match="no arm 'best'"):
        arms_of(["best"], {})
    with pytest.raises(ConfigError, match="no arm to run"):
        arms_of([], {})


def test_differences_are_paired_and_replays_averaged_first() -> None:
    problems = [Problem(str(i), (1, 2), "exact", ("x",)) for i in range(8)]
    noisy = [i / 8 for i in range(8)]
    dense = [Replay(str(i), value + shift, 3, 1) for i, value in enumerate(noisy) for shift in (-0.1, 0.1)]
    worse = [Replay(str(i), value - 0.25, 1, 3) for i, value in enumerate(noisy) for _ in range(2)]
    first, second = summarise(problems, {Arm("dense"): dense, Arm("int8"): worse})
    assert (first.mean, first.difference) == (pytest.approx(0.4375), None)
    assert second.difference == pytest.approx(-0.25)
    # the instances differ much, the pairs not at all
    assert (second.difference_low, second.difference_high) == (pytest.approx(-0.25), pytest.approx(-0.25))
    assert second.high - second.low > 0.2
    assert (first.hit, second.hit) == (0.75, 0.25)


def test_metrics_are_not_averaged_with_each_other(plan: RetentionPlan) -> None:
    problems = [Problem(str(i), (1, 2), metric, ("x",)) for i, metric in enumerate(("exact", "f1", "exact"))]
    replays = [Replay(str(i), score, 1, 1) for i, score in enumerate((1.0, 0.25, 0.0))]
    arm = Arm("random", plan, seed=1234)
    rows = summarise(problems, {arm: replays})
    assert [(row.metric, row.mean, row.count) for row in rows] == [("exact", 0.5, 2), ("f1", 0.25, 1)]
    assert [(one.metric, one.mean) for one in controls([arm], rows)] == [("exact", 0.5), ("f1", 0.25)]


def test_problems_of_a_file(loaded: Loaded, tmp_path: Path) -> None:
    path = tmp_path / "problems.jsonl"
    rows = [
        {"messages": [{"role": "user", "content": "the cat"}], "answers": ["mat"], "id": "a", "task": "recall"},
        {"prompt": "the dog sat", "answers": ["The Mat.", "dog"], "metric": "f1", "max_tokens": 3},
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    first, second = read_problems(path, loaded.tokenizer)
    assert first.prompt == tuple(loaded.tokenizer.render(rows[0]["messages"]))  # type: ignore[arg-type]
    assert (first.id, first.task, first.metric, first.answers) == ("a", "recall", "exact", ("mat",))
    assert (second.id, second.metric, second.max_tokens) == ("2", "f1", 3)
    assert digest([first]) != digest([second])
    assert len(read_problems(path, loaded.tokenizer, limit=1)) == 1
    # within a text, other ends of lines than the file's are letters like others
    path.write_text(json.dumps(rows[1] | {"id": "a\u2028b\x85c"}, ensure_ascii=False) + "\n\n", encoding="utf-8")
    assert [one.id for one in read_problems(path, loaded.tokenizer)] == ["a\u2028b\x85c"]
    for bad, message in (
        ('{"prompt": "a b"}', "KeyError: 'answers'"),
        ('{"prompt": "a b", "answers": "x"}', "no list of texts"),
        ('{"prompt": "a b", "answers": ["x"], "metric": "rouge"}', "no metric 'rouge'"),
        ("{", "problem 1: JSONDecodeError"),
        ("", "holds no problem"),
    ):
        path.write_text(bad)
        with pytest.raises(ConfigError, match=message):
            read_problems(path, loaded.tokenizer)


def test_scores_are_finite(loaded: Loaded, plan: RetentionPlan, problems: list[Problem]) -> None:
    scores = [one.score for block in blocks(loaded, Arm("wr", plan, "suffix"), problems) for one in block.replays]
    assert all(math.isfinite(score) and score > 0 for score in scores)
