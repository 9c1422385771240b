"""The serving benchmark: what it draws, asks, holds against a budget and compares; and a server from end to end."""

from __future__ import annotations

import json
import random
from argparse import ArgumentTypeError
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from holdover.engine.hf.tokenizer import Tokenizer
from holdover.errors import HoldoverError
from holdover.evaluation.journal import Journal
from holdover.evaluation.traces import Conversation, Turn
from holdover.evaluation.traces.build import Preset, build_trace
from holdover.evaluation.traces.exchanges import Exchange
from holdover.evaluation.traces.sources import open_recordings
from holdover.evaluation.traces.trace import Trace, write_trace
from holdover.prefix.eviction import EVICTIONS
from holdover.retention import RetentionPlan
from holdover.weights.bundled import DEFAULT_MODEL
from holdover.weights.source import resolve
from tests.server import tiny

# a source distribution comes without the benchmarks
serve = pytest.importorskip("benchmarks.serve")
flags = pytest.importorskip("benchmarks.serve_flags")
plots = pytest.importorskip("benchmarks.serve_plots")
arms = pytest.importorskip("benchmarks.serve_arms")
grids = pytest.importorskip("benchmarks.serve_grid")
memory = pytest.importorskip("benchmarks.serve_memory")
models = pytest.importorskip("benchmarks.serve_models")
report = pytest.importorskip("benchmarks.serve_report")
simulated = pytest.importorskip("benchmarks.serve_simulated")
traces = pytest.importorskip("benchmarks.serve_traces")

ROOM = arms.Room(chunk_size=64, kv_budget=4 << 20, threads=1)
CALL = "a day, a machine"
SCALE = grids.Scale(64, (32, 16, 8), (0.25, 0.5), (1, 2, 3), (16, 64))


@pytest.mark.parametrize("name", list(models.SHAPES))
def test_drawn_decay_retains_the_printed_shares(name: str) -> None:
    decay = models.drawn_decay(name, 256)
    units = sum(layer.units for layer in decay.layout.state.layers)
    for tokens, share in models.SHAPES[name].horizons.survival[1:-1]:
        # a window of its own tokens: bias is stored in bfloat16
        plan = RetentionPlan.of(decay, max(1, round(tokens)))
        assert plan.offsets[-1] / units == pytest.approx(share, abs=0.02)
    means = [count / layer.units for count, layer in zip(plan.counts, decay.layout.state.layers, strict=True)]
    assert len(set(means)) > 1


def test_what_a_shape_says_gives_the_same_tokens_again(tmp_path: Path) -> None:
    models.word_tokenizer(traces.words(None)).save_pretrained(tmp_path)
    tokenizer = Tokenizer(tmp_path)
    said = random.Random(0).choices(range(3, len(traces.words(None))), k=200)
    assert tokenizer.encode(tokenizer.decode(said)) == said
    prompt = tokenizer.render([{"role": "user", "content": "A prime number"}])
    after = [{"role": "assistant", "content": tokenizer.decode(said)}, {"role": "user", "content": "And this?"}]
    longer = tokenizer.render([{"role": "user", "content": "A prime number"}, *after])
    assert longer[: len(prompt) + len(said)] == [*prompt, *said]


def test_a_recording_is_told_in_words_that_stand_for_tokens(tmp_path: Path) -> None:
    models.word_tokenizer(traces.words(traces.RECORDING)).save_pretrained(tmp_path)
    words, pieces = Tokenizer(tmp_path), Tokenizer(resolve(DEFAULT_MODEL).path)
    original = next(open_recordings(traces.RECORDING))
    (told,) = traces.spelled([original])
    assert [turn.role for turn in told.turns] == [turn.role for turn in original.turns]
    for turn, told_turn in zip(original.turns, told.turns, strict=True):
        ids = words.encode(told_turn.text)
        assert len(set(ids)) == len(set(pieces.encode(turn.text)))
        assert len(ids) == len(pieces.encode(turn.text))
        assert words.decode(ids) == told_turn.text


@pytest.mark.parametrize("first", [0, 1, 9])
def test_a_reply_that_is_not_repeated_differs_from_its_first_token_on(first: int) -> None:
    exchange = Exchange((3, 4, 5), (2,), (first, 6, 7))
    changed = simulated.unrepeated(exchange)
    assert replace(changed, reply=exchange.reply) == exchange
    assert changed.reply[0] != first
    assert changed.reply[0] >= 0
    assert changed.reply[1:] == exchange.reply[1:]


def test_pasted_conversations_fit_their_preset_and_share_no_beginning(tmp_path: Path) -> None:
    models.word_tokenizer(traces.words(None)).save_pretrained(tmp_path)
    preset = replace(traces.PASTED, conversations=(count := 3))
    made, again = (traces.frozen("kimi-linear", tmp_path, preset, None) for _ in range(2))
    assert made.digest == again.digest
    assert len(made.dialogues) == count
    assert len({dialogue.turns[0].text[:60] for dialogue in made.dialogues}) == count


def test_a_grid_names_every_run_once_and_shards_share_it_out() -> None:
    planned = list(grids.grid("m", SCALE))
    keys = [setup.key(seed) for setup, seeds in planned for seed in seeds]
    assert len(set(keys)) == len(keys)
    parts = [flags.part(f"{i}/3") for i in range(3)]
    assert sorted(str(one) for i, n in parts for one in grids.shard(planned, i, n)) == sorted(map(str, planned))
    assert grids.shard(planned, 1, 3)[:2] == planned[2:4]
    assert {setup.server_limit for setup, _ in planned} == set(SCALE.limits)
    assert {setup.placement for setup, _ in grids.placements("m", SCALE, 2)} == {"off", "storage", "hybrid"}


def test_both_arms_are_simulated_under_every_order_at_smaller_budgets_too() -> None:
    wanted = list(simulated._orders({"name": "m", "scale": SCALE.facts() | {"element": "int8"}}))
    assert len(set(wanted)) == len(wanted) == 2 * 3 * len(shares := {1 / 8, 1 / 4, 1 / 2})
    assert {setup.share for setup in wanted} == shares
    assert {setup.eviction for setup in wanted} == set(EVICTIONS)
    points = {(setup.arm, setup.w_max, setup.element, setup.server_limit) for setup in wanted}
    assert points == {("dense", None, "full", 32), ("nr", 16, "int8", 32)}


def test_a_recording_that_does_not_come_along_must_be_given(tmp_path: Path) -> None:
    assert simulated._recording(traces.SOURCE, tmp_path) is None
    assert simulated._recording(traces.RECORDING.name, tmp_path) == traces.RECORDING
    assert simulated._recording("another.json", tmp_path) == tmp_path
    with pytest.raises(HoldoverError, match=r"another\.json was asked.*--recording"):
        simulated._recording("another.json", None)


def test_an_arm_beyond_its_budget_fails() -> None:
    row = {"arm": "nr", "pool_bytes": {"state": 60, "compressed": 30, "staging": 10, "kv": 500}}
    assert memory.check(row, 100, {})["bytes"] == {"native": 60, "compressed": 30, "staging": 10}
    with pytest.raises(HoldoverError, match=r"nr holds 100 bytes of state.*its budget is 99"):
        memory.check(row, 99, {})
    with pytest.raises(HoldoverError, match="took 104 bytes of state by the allocator"):
        memory.check(row, 100, {"held": 95, "staged": 9})
    with pytest.raises(HoldoverError, match="packs in 11 bytes"):
        memory.check(row, 200, {"held": 90, "staged": 11})


def run_of(arm: str, seed: int, ttft: float, call: str = CALL) -> dict[str, object]:
    setup = {"model": "m", "arm": arm, "w_max": None if arm == "dense" else 16, "element": "full", "placement": "off"}
    times = dict.fromkeys(report.MEANS, ttft) | {"hit": 0.5}
    server = {"ranks": 1, "share": 0.25, "server_limit": 32, "slots": 3, "slots_of": {"native": 3}}
    return setup | server | times | {"seed": seed, "call": call}


def test_arms_are_compared_over_the_seeds_that_both_have() -> None:
    rows = [run_of("dense", 1, 100.0), run_of("dense", 2, 300.0), run_of("nr", 1, 50.0)]
    dense, packed = report.compared(rows)
    assert dense["ttft_mean_ms"] == 200
    assert packed["change"]["ttft_mean_ms"] == pytest.approx(-0.5)
    assert "change" not in dense


def test_arms_of_different_calls_are_not_compared() -> None:
    rows = [run_of("dense", 1, 100.0, "one"), run_of("nr", 1, 50.0, "another"), run_of("dense", 2, 40.0, "another")]
    lines = report.compared(rows)
    assert [line["runs"] for line in lines] == [1, 1, 1]
    assert not any("change" in line for line in lines)


def document_of(*rows: dict[str, object], gpu: str = "a GPU") -> dict[str, object]:
    about = [{"name": "m", "call": call} for call in dict.fromkeys(row["call"] for row in rows)]
    machine = {"cpu": "a processor", "gpus": [gpu]}
    return {"machine": machine, "versions": {}, "commit": "c", "models": about, "rows": list(rows)}


def test_merged_files_keep_what_each_call_measured() -> None:
    one, other = document_of(run_of("nr", 1, 5.0, "one")), document_of(run_of("nr", 1, 9.0, "other"))
    both = report.merged([one, other, one])
    assert [row["ttft_mean_ms"] for row in both["rows"]] == [5, 9]
    assert [about["call"] for about in both["models"]] == ["one", "other"]
    with pytest.raises(HoldoverError, match="differ in GPUs"):
        report.merged([one, document_of(run_of("nr", 1, 5.0), gpu="another GPU")])


def test_results_are_missed_in_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["serve_plots", str(tmp_path / "none.json")])
    assert plots.main() == 1
    assert "none.json cannot be read" in capsys.readouterr().err
    (path := tmp_path / "old.json").write_text('{"models": [{"name": "m"}], "rows": []}')
    with pytest.raises(HoldoverError, match="does not say of which call"):
        report.read(path)


@pytest.mark.parametrize("line", ["--models kimi-linear --quick", "--models kimi-linear --threads 3", "--seeds 2"])
def test_flags_that_would_be_ignored_are_refused(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        flags.arguments("", line.split())
    assert "does nothing for" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["2/2", "-1/2", "0/0", "1", "a/b"])
def test_a_shard_is_one_part_of_several(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match="is no i/n"):
        flags.part(text)


def test_a_folder_with_another_model_is_refused(tmp_path: Path) -> None:
    def config(layers: int, vocabulary: int) -> object:
        return models.KimiLinearConfig(
            **{"vocab_size": vocabulary, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": layers},
            **{"num_attention_heads": 1, "num_key_value_heads": 1, "linear_num_heads": 1, "pad_token_id": 0},
            **{
                "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * (layers // 4),
                "mlp_layer_types": ["dense"] * layers,
                "eos_token_id": 2,
            },
        )

    shape = replace(models.SHAPES["kimi-linear"], config=config, layers=4)
    path = models.write_model("small", tmp_path / "small", ["a", "b"], "cpu", shape=shape)
    before = (path / "model.safetensors").stat().st_mtime_ns
    assert models.write_model("small", path, ["a", "b"], "cpu", shape=shape) == path
    assert (path / "model.safetensors").stat().st_mtime_ns == before
    with pytest.raises(HoldoverError, match="another model, by layer_types, mlp_layer_types, num_hidden_layers"):
        models.write_model("small", path, ["a", "b"], "cpu", shape=replace(shape, layers=8))


def test_rows_of_a_journal_are_written_with_the_call_that_measured_them(
    tmp_path: Path, trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = serve.Model("m", "m", trace, SCALE, ROOM, {"weights": "random"})
    options = flags.arguments("", ["--out", str(tmp_path / "out.json")])
    path = tmp_path / "runs.jsonl"
    for call in ("one", "two"):
        with Journal(path, serve.identity([model], options), resume=True) as journal:
            setup, (seed, *_) = serve.planned(model, None)[call == "two"]
            row = run_of(setup.arm, seed, 5.0, call) | {"share": setup.share}
            journal.add({serve.about_key("m", call): serve.about(model) | {"call": call}, setup.key(seed): row})
            serve.write([model], options, journal, None)
    written = json.loads((tmp_path / "out.json").read_text())
    assert [row["call"] for row in written["rows"]] == [about["call"] for about in written["models"]] == ["one", "two"]
    monkeypatch.setattr("benchmarks.common.commit", lambda: "another")
    with pytest.raises(HoldoverError, match="commit was"):
        Journal(path, serve.identity([model], options), resume=True)


PRESET = Preset("two", 2, 2, shortest=16, longest=256, context=512, reply=4)


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    texts = [f"the cat number {i} sat on the mat and " * 4 for i in range(2)]
    recorded = [
        Conversation(f"c{i}", tuple(Turn(role, f"{text} {n}") for n in range(2) for role in ("user", "assistant")))
        for i, text in enumerate(texts)
    ]
    tokenizer = Tokenizer(tiny.save(tmp_path / "model"))
    return build_trace(recorded, PRESET, tokenizer, tokenizer.end_tokens, model="m", source="made up", seeds=(1,))


def test_servers_hold_what_their_budget_allows_and_do_what_is_predicted(tmp_path: Path, trace: Trace) -> None:
    write_trace(trace, tmp_path / "trace.jsonl")
    servers = arms.Servers("m", str(tmp_path / "model"), trace, tmp_path / "trace.jsonl", ROOM, clients=2, ranks=None)
    setup = grids.Setup("m", "wr", 4, share=4.0, server_limit=2)
    (row,) = servers.run(setup, [1])
    assert (row["requests"], row["arm"], row["w_max"]) == (4, "wr", 4)
    assert set(row["slots_of"]) == set(row["resident"]) == {"native", "compressed"}
    assert 0 < row["state_bytes"] <= row["budget_bytes"] == servers.budget(setup)
    assert sum(row["restores"].values()) > 0
    assert torch.cuda.is_available() or row["allocated"] is None


def test_a_client_that_does_not_end_is_an_error(tmp_path: Path, trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arms, "_PATIENCE", 0.01)
    path = tmp_path / "trace.jsonl"
    servers = arms.Servers("m", str(tmp_path / "model"), trace, path, ROOM, clients=2, ranks=None)
    with pytest.raises(HoldoverError, match=r"dense of m took longer than 0\.01 s"):
        servers._asked("http://127.0.0.1:9", grids.Setup("m", "dense", None, share=4.0, server_limit=2), [1])
