"""Which conversations a trace takes, how it is frozen, and that what was frozen comes back."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from holdover.engine.hf.tokenizer import Tokenizer
from holdover.errors import ConfigError, HoldoverError
from holdover.evaluation.traces import Conversation, load_sharegpt
from holdover.evaluation.traces.aiperf import write_aiperf
from holdover.evaluation.traces.build import PAPER, PRESETS, Preset, Tally, build_trace
from holdover.evaluation.traces.prompts import exchanges_of
from holdover.evaluation.traces.sources import BUNDLED, open_recordings
from holdover.evaluation.traces.trace import Trace, hash_of, read_trace, sampling_seed, write_trace
from holdover.weights.bundled import DEFAULT_MODEL, bundled_path
from tests.evaluation.traces.letters import ENDS, Letters, conversation

LETTERS = Letters()
SCALE = Preset("test", conversations=2, turns=2, shortest=20, longest=40, context=90, reply=8)
# "[u:" + text + "][a:" is 7 letters longer than the text
GOOD = conversation("good", "q" * 20, "short", "more", "a very long reply", "never", "reached")
WITH_SYSTEM = conversation("system", "be", "q" * 20, "yes", "so", "no", roles="sua")


def build(*recorded: Conversation, preset: Preset = SCALE, tally: Tally | None = None) -> Trace:
    return build_trace(recorded, preset, LETTERS, ENDS, model="letters", source="made up", seeds=(1, 2), tally=tally)


def test_the_paper_preset_is_the_papers_protocol() -> None:
    assert (PAPER.conversations, PAPER.turns, PAPER.shortest, PAPER.longest) == (256, 4, 1024, 8192)
    assert (PAPER.context, PAPER.reply) == (16384, 1024)
    assert PRESETS["small"].context == 4096


def test_lengths_are_those_of_prompts_and_clipped_replies() -> None:
    trace = build(GOOD, WITH_SYSTEM)
    good, system = trace.dialogues
    assert [turn.text for turn in good.turns] == ["q" * 20, "more"]
    assert [(turn.reply, turn.max_tokens) for turn in good.turns] == [("short", 5), ("a very l", 8)]
    second = f"[u:{'q' * 20}][a:short][u:more][a:"
    assert (good.turns[1].prompt_tokens, good.turns[1].prompt_hash) == (len(second), hash_of(LETTERS.encode(second)))
    assert system.opening() == [{"role": "system", "content": "be"}]
    assert trace.num_requests == 4


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (conversation("few", "q" * 20, "a"), "shape"),
        (conversation("twice", "q" * 20, "a", "b", "c", roles="uuaa"), "shape"),
        (conversation("short", "q" * 12, "a", "b", "c"), "length"),
        (conversation("long", "q" * 34, "a", "b", "c"), "length"),
        (conversation("grows", "q" * 30, "a", "b" * 50, "c"), "length"),
        (conversation("silent", "q" * 20, "", "b", "c"), "length"),
        (conversation("refused", "q" * 20, "a", "refuse me", "c"), "refused"),
    ],
    ids=lambda value: value.id if isinstance(value, Conversation) else "",
)
def test_what_does_not_fit_is_passed_over_and_counted(other: Conversation, reason: str) -> None:
    tally = Tally()
    trace = build(other, GOOD, tally=tally)
    assert [dialogue.id for dialogue in trace.dialogues] == ["good"]
    assert (tally.read, getattr(tally, reason)) == (2, 1)
    with pytest.raises(ConfigError, match="none of 1 conversations"):
        build(other)


def test_the_first_that_fit_are_taken_each_once() -> None:
    third = conversation("third", "z" * 20, "a", "b", "c")
    assert [one.id for one in build(GOOD, GOOD, WITH_SYSTEM, third).dialogues] == ["good", "system"]


def test_a_written_trace_is_read_as_it_was(tmp_path: Path) -> None:
    # line separators of Unicode end no line of the file
    odd = conversation("odd", "q\u2028" * 12, "a\x85b", "more", "yes")
    trace = build(GOOD, odd)
    write_trace(trace, tmp_path / "trace.jsonl")
    assert read_trace(tmp_path / "trace.jsonl") == trace


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda lines: lines[:-1], "was cut or changed"),
        (lambda lines: [lines[0], lines[1].replace("more", "less"), *lines[2:]], "was cut or changed"),
        (lambda lines: [*lines[:-1], lines[-1][:40]], "line 3 is not JSON"),
        (lambda lines: [lines[0], "{}", *lines[2:]], "line 2 is no conversation"),
        (lambda lines: lines[1:], "no frozen trace"),
        (lambda lines: ["[]"], "line 1 is no JSON object"),
    ],
)
def test_half_a_trace_is_none(tmp_path: Path, damage, said: str) -> None:
    path = tmp_path / "trace.jsonl"
    write_trace(build(GOOD, WITH_SYSTEM), path)
    path.write_text("\n".join(damage(path.read_text().splitlines())), encoding="utf-8")
    with pytest.raises(HoldoverError, match=said):
        read_trace(path)


def test_a_missing_trace_is_named(tmp_path: Path) -> None:
    with pytest.raises(HoldoverError, match=r"nowhere\.jsonl cannot be read"):
        read_trace(tmp_path / "nowhere.jsonl")


def test_exchanges_are_what_was_frozen() -> None:
    trace = build(GOOD, WITH_SYSTEM)
    for dialogue, found in zip(trace.dialogues, exchanges_of(trace, LETTERS, ENDS), strict=True):
        assert [hash_of(one.prompt) for one in found] == [turn.prompt_hash for turn in dialogue.turns]
        assert [len(one.reply) for one in found] == [turn.max_tokens for turn in dialogue.turns]
        for one, later in pairwise(found):
            assert later.prompt[: len(one.prompt) + len(one.reply)] == one.prompt + one.reply


def test_another_tokenizer_is_noticed() -> None:
    class Doubled(Letters):
        def encode(self, text: str) -> list[int]:
            return [token for token in super().encode(text) for _ in range(2)]

    with pytest.raises(HoldoverError, match="turn 0 of conversation good has another prompt"):
        exchanges_of(build(GOOD), Doubled(), ENDS)


def test_seeds_differ_by_run_conversation_and_turn() -> None:
    seeds = {sampling_seed(run, name, turn) for run in (1, 2) for name in ("a", "b") for turn in (0, 1)}
    assert len(seeds) == 8
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert sampling_seed(1, "a", 0) == sampling_seed(1, "a", 0)


def test_aiperf_gets_the_same_requests(tmp_path: Path) -> None:
    no_question = conversation("no question", "q" * 20, "a", "", "b")
    trace = build(GOOD, WITH_SYSTEM, no_question, preset=replace(SCALE, conversations=3))
    write_aiperf(trace, tmp_path / "aiperf.jsonl", seed=2, temperature=0.5)
    good, system, unasked = (json.loads(line) for line in (tmp_path / "aiperf.jsonl").read_text().splitlines())
    assert good["session_id"] == "good"
    wanted = {"seed": sampling_seed(2, "good", 1), "temperature": 0.5, "ignore_eos": True}
    assert good["turns"][1] == {"texts": ["more"], "output_length": 8, "extra": wanted}
    assert system["turns"][0] == {"role": "system", "text": "be"}
    assert len(system["turns"]) == 3
    # AIPerf takes no empty "text"
    assert unasked["turns"][1]["texts"] == [""]


def test_the_article_trace_is_that_of_its_script() -> None:
    # a source distribution comes without the benchmarks
    script = pytest.importorskip("benchmarks.data.make_article_trace")
    assert script.TRACE.read_text(encoding="utf-8") == script.trace()
    found = list(load_sharegpt(script.TRACE))
    texts = [turn.text for one in found for turn in one.turns if turn.role == "user"]
    assert len(set(texts)) == len(texts)


@pytest.mark.parametrize(
    # published results name the digest of `small` (benchmarks/results/serve.json): it says that their work is today's
    ("name", "digest"),
    [("small", "7c7bba2d893c5045"), ("tiny", "e21776230eaebc26")],
)
def test_the_bundled_recording_gives_a_bundled_model_all_that_a_preset_asks_for(name: str, digest: str) -> None:
    path = bundled_path(DEFAULT_MODEL)
    assert path is not None
    tokenizer, preset = Tokenizer(path), PRESETS[name]
    made = build_trace(
        open_recordings(BUNDLED),
        preset,
        tokenizer,
        tokenizer.end_tokens,
        model=DEFAULT_MODEL,
        source=BUNDLED.name,
        seeds=(1, 2, 3, 4, 5),
    )
    assert len(made.dialogues) == preset.conversations
    assert made.digest == digest
