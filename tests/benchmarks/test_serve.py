"""The serving benchmark: what it draws, asks, holds against a budget and compares; and a server from end to end."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from holdover.engine.hf.tokenizer import Tokenizer
from holdover.errors import HoldoverError
from holdover.evaluation.traces import Conversation, Turn
from holdover.evaluation.traces.build import Preset, build_trace
from holdover.evaluation.traces.trace import write_trace
from holdover.retention import RetentionPlan
from tests.server import tiny

# a source distribution comes without the benchmarks
serve = pytest.importorskip("benchmarks.serve")
arms = pytest.importorskip("benchmarks.serve_arms")
grids = pytest.importorskip("benchmarks.serve_grid")
memory = pytest.importorskip("benchmarks.serve_memory")
models = pytest.importorskip("benchmarks.serve_models")
report = pytest.importorskip("benchmarks.serve_report")
traces = pytest.importorskip("benchmarks.serve_traces")

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
    models.word_tokenizer(traces.words()).save_pretrained(tmp_path)
    tokenizer = Tokenizer(tmp_path)
    said = random.Random(0).choices(range(3, len(traces.words())), k=200)
    assert tokenizer.encode(tokenizer.decode(said)) == said
    prompt = tokenizer.render([{"role": "user", "content": "A prime number"}])
    after = [{"role": "assistant", "content": tokenizer.decode(said)}, {"role": "user", "content": "And this?"}]
    longer = tokenizer.render([{"role": "user", "content": "A prime number"}, *after])
    assert longer[: len(prompt) + len(said)] == [*prompt, *said]


def test_pasted_conversations_fit_their_preset_and_share_no_beginning(tmp_path: Path) -> None:
    models.word_tokenizer(traces.words()).save_pretrained(tmp_path)
    count = 3
    made = serve.frozen("kimi-linear", tmp_path, traces.PASTED, list(traces.pasted(count)), traces.SOURCE)
    again = serve.frozen("kimi-linear", tmp_path, traces.PASTED, list(traces.pasted(count)), traces.SOURCE)
    assert made.digest == again.digest
    assert len(made.dialogues) == count
    assert len({dialogue.turns[0].text[:60] for dialogue in made.dialogues}) == count


def test_a_grid_names_every_run_once_and_shards_share_it_out() -> None:
    planned = list(grids.grid("m", SCALE))
    keys = [setup.key(seed) for setup, seeds in planned for seed in seeds]
    assert len(set(keys)) == len(keys)
    parts = [list(serve.sharded(planned, f"{i}/3")) for i in range(3)]
    assert sorted(str(one) for part in parts for one in part) == sorted(map(str, planned))
    assert {setup.server_limit for setup, _ in planned} == set(SCALE.limits)
    assert {setup.placement for setup, _ in grids.placements("m", SCALE, 2)} == {"off", "storage", "hybrid"}


def test_an_arm_beyond_its_budget_fails() -> None:
    row = {"arm": "nr", "pool_bytes": {"state": 60, "compressed": 30, "staging": 10, "kv": 500}}
    assert memory.check(row, 100, {})["bytes"] == {"native": 60, "compressed": 30, "staging": 10}
    with pytest.raises(HoldoverError, match=r"nr holds 100 bytes of state.*its budget is 99"):
        memory.check(row, 99, {})
    with pytest.raises(HoldoverError, match="took 104 bytes of state by the allocator"):
        memory.check(row, 100, {"held": 95, "staged": 9})
    with pytest.raises(HoldoverError, match="packs in 11 bytes"):
        memory.check(row, 200, {"held": 90, "staged": 11})


def run_of(arm: str, seed: int, ttft: float) -> dict[str, object]:
    setup = {"model": "m", "arm": arm, "w_max": None if arm == "dense" else 16, "element": "full", "placement": "off"}
    times = dict.fromkeys(report.MEANS, ttft) | {"hit": 0.5}
    server = {"ranks": 1, "share": 0.25, "server_limit": 32, "slots": 3, "slots_of": {"native": 3}}
    return setup | server | times | {"seed": seed}


def test_arms_are_compared_over_the_seeds_that_both_have() -> None:
    rows = [run_of("dense", 1, 100.0), run_of("dense", 2, 300.0), run_of("nr", 1, 50.0)]
    dense, packed = report.compared(rows)
    assert dense["ttft_mean_ms"] == 200
    assert packed["change"]["ttft_mean_ms"] == pytest.approx(-0.5)
    assert "change" not in dense


PRESET = Preset("two", 2, 2, shortest=16, longest=256, context=512, reply=4)


def test_servers_hold_what_their_budget_allows_and_do_what_is_predicted(tmp_path: Path) -> None:
    path = tiny.save(tmp_path / "model")
    texts = [f"the cat number {i} sat on the mat and " * 4 for i in range(2)]
    recorded = [
        Conversation(f"c{i}", tuple(Turn(role, f"{text} {n}") for n in range(2) for role in ("user", "assistant")))
        for i, text in enumerate(texts)
    ]
    tokenizer = Tokenizer(path)
    trace = build_trace(recorded, PRESET, tokenizer, tokenizer.end_tokens, model="m", source="made up", seeds=(1,))
    write_trace(trace, tmp_path / "trace.jsonl")
    room = arms.Room(chunk_size=64, kv_budget=4 << 20, threads=1)
    servers = arms.Servers("m", str(path), trace, tmp_path / "trace.jsonl", room, clients=2, ranks=None)
    setup = grids.Setup("m", "wr", 4, share=4.0, server_limit=2)
    (row,) = servers.run(setup, [1])
    assert (row["requests"], row["arm"], row["w_max"]) == (4, "wr", 4)
    assert set(row["slots_of"]) == set(row["resident"]) == {"native", "compressed"}
    assert 0 < row["state_bytes"] <= row["budget_bytes"] == servers.budget(setup)
    assert sum(row["restores"].values()) > 0
    assert torch.cuda.is_available() or row["allocated"] is None
