"""Checkpoints, logs, drafts and restores together, on a tiny random model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from holdover.engine.engine import Engine
from holdover.engine.hf.loader import Loaded, load
from holdover.engine.options import EngineOptions
from holdover.engine.sampling import SamplingParams
from holdover.errors import ConfigError, IntegrityError
from holdover.evaluation.chunks.case import Case, Cut
from holdover.evaluation.journal import Journal
from holdover.evaluation.protocols.arms import Arm, arms_of
from holdover.evaluation.protocols.combinations import chunks
from holdover.evaluation.protocols.combinations.arms import Combination, combinations_of
from holdover.evaluation.protocols.combinations.chunk_summary import chunk_rows
from holdover.evaluation.protocols.combinations.conversation import Conversation, Turn, from_problems, from_text
from holdover.evaluation.protocols.combinations.exact import run as run_exact
from holdover.evaluation.protocols.combinations.run import NOTHING, Reply, Talk, Work, check, run
from holdover.evaluation.protocols.combinations.summary import at_turns, growths, rows
from holdover.evaluation.protocols.problem import Problem, digest
from holdover.retention.decay import read_decay
from holdover.retention.plan import RetentionPlan
from tests.helpers import assert_close
from tests.server import tiny

PREFIX, FOLLOWING, TURNS, INTERVAL = 20, 8, 3, 6
KINDS = ("dense", "nr", "wr", "int8", "nr+int8")


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    loaded = load(str(tiny.save(tmp_path_factory.mktemp("tiny") / "model")))
    for name, parameter in loaded.host.model.named_parameters():  # type: ignore[attr-defined]
        # random heads forget within a token or two, and nothing is missed of them
        if name.endswith("dt_bias"):
            parameter.fill_(-5)
    return loaded


@pytest.fixture(scope="module")
def plan(loaded: Loaded) -> RetentionPlan:
    return halved(loaded, 4)


def halved(loaded: Loaded, w_max: int) -> RetentionPlan:
    """Half of the units, all of them with long horizons."""
    assert loaded.files is not None
    plan = RetentionPlan.of(read_decay(loaded.files), w_max)
    retained = tuple(torch.arange(len(mask)) % 2 == 0 for mask in plan.retained)
    horizons = tuple(torch.full_like(layer, 1000) for layer in plan.horizons)
    return replace(plan, horizons=horizons, retained=retained)


@pytest.fixture(scope="module")
def text(loaded: Loaded) -> list[int]:
    generator = torch.Generator().manual_seed(1)
    drawn = torch.randint(10, loaded.host.layout.vocab_size, (20,), generator=generator).tolist()
    # what repeats itself is drafted
    return [token for i in range(12) for token in (*drawn[: 7 + i % 3], i)]


@pytest.fixture(scope="module")
def conversations(text: list[int]) -> list[Conversation]:
    (cut,) = from_text(text, turns=TURNS, prefix=PREFIX, following=FOLLOWING, limit=1)
    greedy = tuple(Turn(tuple(text[i : i + PREFIX]), FOLLOWING) for i in range(TURNS))
    return [cut, Conversation("greedy", greedy)]


def talks(
    loaded: Loaded, arms: list[Combination], conversations: list[Conversation], journal: Journal | None = None
) -> dict[Combination, list[Talk]]:
    found = list(run(loaded, arms, conversations, INTERVAL, Journal(None, {}) if journal is None else journal))
    return {arm: [each[arm] for each in found] for arm in arms}


def test_every_combination_resumes_every_turn_and_adds_up(
    loaded: Loaded, plan: RetentionPlan, conversations: list[Conversation]
) -> None:
    arms = combinations_of(arms_of(KINDS, {4: plan}))
    assert len({arm.name for arm in arms}) == len(arms) == 5 * 3 + 4
    results = talks(loaded, arms, conversations)
    for arm, found in results.items():
        depths = [PREFIX + FOLLOWING - 1 + 2 * FOLLOWING * i for i in range(TURNS - 1)]
        assert [reply.resumed for reply in found[0].replies] == [0, *depths]
        losses = [0] * TURNS if not arm.is_lossy else [0, 1, 1] if arm.once else [0, 1, 2]
        assert all([reply.losses for reply in talk.replies] == losses for talk in found), arm.name
    by_name = {row.arm: row for row in rows(results)}
    dense, nr = by_name["dense/dense/off"], by_name["nr-w4/dense/off"]
    # what loses nothing is the exact run up to rounding, with a log and with drafts too
    exact = [by_name[f"dense/{way}"] for way in ("dense/off", "deferred/off", "deferred/ngram")]
    assert all(row.mean < 1e-9 and row.agreement == 1 for row in exact)
    assert min(row.mean for row in by_name.values() if row.checkpoint != "dense") > 100 * dense.mean
    assert (dense.difference, nr.difference, by_name["nr-w4/deferred/off/once"].difference) == (None, None, None)
    # and a log or drafts add nothing to what is lost
    added = by_name["nr-w4/deferred/ngram"].difference
    assert added == pytest.approx(by_name["nr-w4/deferred/ngram"].mean - nr.mean)
    assert abs(added) < 1e-3 * nr.mean
    assert all(row.fresh < 1e-9 for row in by_name.values())
    assert nr.checkpoint_bytes < dense.checkpoint_bytes
    assert by_name["int8/dense/off"].checkpoint_bytes < dense.checkpoint_bytes
    assert nr.slot_bytes < by_name["nr-w4/deferred/off"].slot_bytes
    for row in by_name.values():
        assert row.work.loads == (0 if row.checkpoint == "dense" else 2 * (TURNS - 1))
        assert (row.work.logged > 0) == (row.decode == "deferred")
        assert (row.work.accepted > 0) == (row.speculate == "ngram")
        assert row.merge_interval == (INTERVAL if row.decode == "deferred" else None)
        assert row.count == 2


def test_the_first_of_many_restores_is_the_one_restore_of_the_control(
    loaded: Loaded, plan: RetentionPlan, conversations: list[Conversation]
) -> None:
    arms = [Combination(Arm("nr", plan), "deferred", once=once) for once in (False, True)]
    results = talks(loaded, arms, conversations)
    first, *_, last = at_turns(results)
    assert (first.restores, first.losses, last.restores, last.losses) == (1, 1, TURNS - 1, TURNS - 1)
    # both are of the same tokens, one state from a log, the other from a prefill
    assert first.excess == pytest.approx(0, abs=1e-4 * first.mean)
    assert last.excess is not None
    assert abs(last.excess) > 1e-2 * last.mean
    (growth,) = growths(results)
    assert (growth.restores, growth.count) == (TURNS - 1, 2)


def test_the_exact_run_is_an_uncached_engine(loaded: Loaded, conversations: list[Conversation]) -> None:
    with Engine(loaded, EngineOptions(max_running=1)) as engine:
        for conversation in conversations:
            turns = run_exact(loaded.host, conversation)
            for turn, own in zip(turns, conversation.turns, strict=True):
                assert turn.reply == own.reply or not own.reply
                params = SamplingParams(max_tokens=FOLLOWING, temperature=0.0, ignore_eos=True, logprobs=0)
                params = replace(params, forced=own.reply)
                output = engine.generate([turn.prompt], params, use_cache=False)[0]
                assert output.token_ids == turn.reply
                assert output.logprobs is not None
                wanted = turn.logits.log_softmax(-1)[range(FOLLOWING), turn.reply]
                assert_close("logprobs", wanted, torch.tensor([one.logprob for one in output.logprobs]), 1e-4)
            last = turns[-1]
            assert len(last.prompt) + len(last.reply) == len(conversation)


def test_an_interrupted_run_goes_on_with_what_is_missing(
    loaded: Loaded, plan: RetentionPlan, conversations: list[Conversation], tmp_path: Path
) -> None:
    path, arms = tmp_path / "work.jsonl", [Combination(Arm("nr", plan), "deferred"), Combination(Arm("dense"))]
    whole = talks(loaded, arms, conversations)
    with Journal(path, {}) as journal:
        steps = run(loaded, arms[:1], conversations, INTERVAL, journal)
        next(steps)
        steps.close()
    lines = path.read_bytes().splitlines(keepends=True)
    entry = json.loads(lines[1])
    entry["value"]["replies"][0]["same"] = 3
    path.write_bytes(lines[0] + json.dumps(entry).encode() + b"\n")
    with Journal(path, {}, resume=True) as journal:
        resumed = talks(loaded, arms, conversations, journal)
    assert resumed[arms[0]][0].replies[0].same == 3
    assert resumed[arms[0]][0].replies[1:] == whole[arms[0]][0].replies[1:]
    assert resumed[arms[0]][1] == whole[arms[0]][1]
    assert resumed[arms[1]] == whole[arms[1]]


def test_a_turn_that_resumed_something_else_stops_the_run(loaded: Loaded, conversations: list[Conversation]) -> None:
    # a window that reaches the first token computes everything anew: nothing is lost
    arm = Combination(Arm("wr", halved(loaded, 64), "suffix"), "deferred")
    with pytest.raises(IntegrityError, match=r"turn 2 resumed 27 tokens, exact, .* not 27, wr\(1\)"):
        talks(loaded, [arm], conversations)


def test_arms_that_did_not_do_what_they_are_about(plan: RetentionPlan) -> None:
    work = Work(loads=3, logged=20, folded=5, verified=2, drafted=6, accepted=1)
    arm = Combination(Arm("nr", plan), "deferred", "ngram")
    check(arm, work)
    check(Combination(Arm("dense")), NOTHING)
    for missing, message in (("loads", "no compressed load"), ("logged", "of 0 forwards"), ("verified", "no drafts")):
        with pytest.raises(IntegrityError, match=message):
            check(arm, replace(work, **{missing: 0}))


def test_conversations_are_cut_and_what_cannot_be_is_refused(loaded: Loaded, text: list[int]) -> None:
    first, second = from_text(text[:100], turns=2, prefix=20, following=10, limit=None)
    assert [len(turn.said) for turn in first.turns] == [20, 10]
    assert [token for turn in first.turns for token in (*turn.said, *turn.reply)] == text[:50]
    assert second.turns[0].said == tuple(text[50:70])
    assert digest([first]) != digest([second])
    assert len(from_text(text, turns=2, prefix=20, following=10, limit=1)) == 1
    problems = [Problem(str(i), (i, i + 1, i + 2), "exact", ("x",)) for i in range(5)]
    made = from_problems(problems, turns=2, following=6)
    assert [one.id for one in made] == ["0", "2"]
    assert made[1].turns == (Turn((2, 3, 4), 6), Turn((3, 4, 5), 6))
    for refused, message in (
        (lambda: from_text(text[:49], turns=2, prefix=20, following=10, limit=None), "give a longer one"),
        (lambda: from_text(text, turns=1, prefix=20, following=10, limit=None), "raise --restores"),
        (lambda: from_problems(problems, turns=6, following=6), "too few"),
        (lambda: from_problems(problems, turns=2, following=1), "--following"),
    ):
        with pytest.raises(ConfigError, match=message):
            refused()
    long = Conversation("long", (Turn(tuple(text) * 20, 4), Turn((1,), 4)))
    with pytest.raises(ConfigError, match="does not fit into the context"):
        talks(loaded, [Combination(Arm("dense"))], [long])


def test_slopes_are_of_every_conversation(plan: RetentionPlan) -> None:
    arm = Combination(Arm("nr", plan), "deferred")

    def talk(name: str, *kl: float) -> Talk:
        replies = [Reply(0, 0, (0.0, 0.0), 2), *(Reply(1, 10, (value, value), 1) for value in kl)]
        return Talk(name, tuple(replies), 10, 20, INTERVAL, NOTHING)

    chain, once = [talk("a", 1, 3, 5), talk("b", 1, 2, 3)], [talk("a", 1, 1, 1), talk("b", 1, 2, 3)]
    (growth,) = growths({arm: chain, replace(arm, once=True): once})
    assert (growth.slope, growth.low, growth.high) == (1.5, 1.0, 2.0)
    assert (growth.excess, growth.excess_low, growth.excess_high) == (1.0, 0.0, 2.0)
    found = at_turns({arm: chain, replace(arm, once=True): once})
    assert [row.excess for row in found] == [0.0, 1.0, 2.0]
    # two restores have a slope, one has none
    pair = {arm: [talk("a", 1, 3), talk("b", 1, 2)]}
    (growth,) = growths(pair)
    assert (growth.slope, growth.low, growth.high, growth.excess) == (1.5, 1.0, 2.0, None)
    assert growths({arm: [talk("a", 1)]}) == []
    (row, _) = rows({arm: chain, replace(arm, once=True): once})
    assert (row.mean, row.p95, row.agreement, row.difference) == (2.5, 5.0, 0.5, None)


def test_chunk_states_are_kept_reduced(loaded: Loaded, plan: RetentionPlan, text: list[int]) -> None:
    cases = Cut(2, 2, 12, 4, 6).cases(text, 200)
    results = contexts_of(loaded, plan, cases)
    found = {(row.state, row.initialiser, row.selector): row for row in chunk_rows(results)}
    assert len(found) == 4 * 4
    for (state, *_), row in found.items():
        assert row.packed == (0 if state == "full" else 4)
        assert (row.difference is None) == (state == "full")
        assert row.count == 2
    full, bf16, packed, int8 = (found[state, "exact", "none"] for state in ("full", "bf16", "packed", "int8"))
    assert full.state_bytes > bf16.state_bytes > int8.state_bytes
    assert full.state_bytes > packed.state_bytes
    # composing loses more than storing; what is stored narrower differs a little, what omits units more
    assert 0 < abs(bf16.mean - full.mean) < full.mean
    assert packed.difference == pytest.approx(packed.mean - full.mean)
    assert len({row.mean for row in (full, bf16, packed, int8)}) == 4


def test_contexts_on_record_are_not_composed_again(loaded: Loaded, plan: RetentionPlan, text: list[int]) -> None:
    cases, journal = Cut(1, 2, 12, 4, 6).cases(text, 200), Journal(None, {})
    first = contexts_of(loaded, plan, cases, journal)
    before = loaded.host.forwards  # type: ignore[attr-defined]
    assert contexts_of(loaded, plan, cases, journal) == first
    assert loaded.host.forwards == before  # type: ignore[attr-defined]


def contexts_of(
    loaded: Loaded, plan: RetentionPlan, cases: list[Case], journal: Journal | None = None
) -> dict[chunks.State, list[chunks.Contexts]]:
    found: dict[chunks.State, list[chunks.Contexts]] = {}
    for state, contexts in chunks.run(
        loaded.host, chunks.states_of([plan]), cases, Journal(None, {}) if journal is None else journal
    ):
        found.setdefault(state, []).append(contexts)
    return found
