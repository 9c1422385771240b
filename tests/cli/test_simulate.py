"""``holdover trace`` and ``holdover simulate``: from a recording to the best operating point."""

from __future__ import annotations

import json
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from holdover.cli.loading import load_engine
from holdover.cli.port import behind_port
from holdover.errors import HoldoverError
from holdover.evaluation.simulate.costs import ServingCost, read_costs, write_costs
from holdover.evaluation.simulate.serving import measure_served, obstacle
from tests.cli.run import error_line, invoke
from tests.evaluation.simulate.traffic import COSTS
from tests.server import tiny


def recording(path: Path, count: int) -> Path:
    def messages(i: int) -> list[dict[str, str]]:
        texts = [f"the cat number {i} sat on the mat and " * 4 + str(n) for n in range(8)]
        return [{"from": ("human", "gpt")[n % 2], "value": text} for n, text in enumerate(texts)]

    path.write_text(json.dumps([{"id": f"c{i}", "conversations": messages(i)} for i in range(count)]))
    return path


@pytest.fixture(scope="module")
def trace(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("traces")
    source, path = recording(folder / "recorded.json", 6), folder / "trace.jsonl"
    ran = invoke("trace", str(source), str(model), "-o", str(path), "--preset", "tiny", "--seeds", "4,5")
    assert ran.exit_code == 0, ran.output
    assert "6 conversations, 24 requests" in ran.stdout
    assert "only 6 of 24 conversations that fit" in ran.stdout
    return path


def test_a_preset_that_nobody_knows_is_refused(model: Path, tmp_path: Path) -> None:
    source = recording(tmp_path / "recorded.json", 1)
    ran = invoke("trace", str(source), str(model), "-o", str(tmp_path / "out"), "--preset", "huge")
    assert "wanted one of paper, small, tiny" in error_line(ran.stderr)


def test_a_recording_without_a_fitting_conversation_says_why(model: Path, tmp_path: Path) -> None:
    source = recording(tmp_path / "recorded.json", 2)
    ran = invoke("trace", str(source), str(model), "-o", str(tmp_path / "out"), "--preset", "paper")
    assert "none of 2 conversations" in error_line(ran.stderr)
    assert "2 are too short or too long" in error_line(ran.stderr)


def test_points_are_compared_within_one_budget(model: Path, trace: Path, tmp_path: Path) -> None:
    write_costs(COSTS, tmp_path / "costs.json")
    flags = ("--costs", str(tmp_path / "costs.json"), "--budget", "512KiB", "--clients", "4", "--max-running", "2")
    grid = ("--wmax", "16", "--element", "full", "--eviction", "lru,coverage")
    ran = invoke("simulate", str(trace), *flags, *grid, "--model", str(model), "--json")
    assert ran.exit_code == 0, ran.output
    found = json.loads(ran.stdout)
    assert [row["name"] for row in found["rows"]] == ["dense", "nr 16", "wr 16"] * 2
    dense, packed = found["rows"][:2]
    assert dense["packed_slots"] == 0
    assert packed["native_slots"] + packed["packed_slots"] >= dense["native_slots"]
    assert 0 < dense["hit"] < 1
    best = min(found["rows"], key=lambda row: row["ttft_mean_ms"])
    assert found["best"]["name"] == best["name"]
    assert found["best"]["eviction"] == best["eviction"]


def test_a_budget_that_is_too_small_costs_one_point_only(model: Path, trace: Path, tmp_path: Path) -> None:
    write_costs(COSTS, tmp_path / "costs.json")
    flags = ("--costs", str(tmp_path / "costs.json"), "--model", str(model), "--budget", "1KiB", "--wmax", "16")
    ran = invoke("simulate", str(trace), *flags)
    assert ran.exit_code == 0, ran.output
    assert "state budget of 1024 bytes is too small" in ran.stdout


@pytest.mark.parametrize(
    ("serving", "said"),
    [
        (ServingCost(), "the server's work is not counted"),
        (ServingCost(1.0, 0.1, 0.5, 3), "was measured with 3 requests together, and --max-running is 2"),
        (ServingCost(1.0, 0.1, 0.5, 2), ""),
        # as files had it before this was written down
        (ServingCost(1.0, 0.1, 0.5), ""),
    ],
)
def test_what_costs_do_not_say_of_a_server_is_said(
    serving: ServingCost, said: str, model: Path, trace: Path, tmp_path: Path
) -> None:
    write_costs(replace(COSTS, serving=serving), tmp_path / "costs.json")
    flags = ("--costs", str(tmp_path / "costs.json"), "--model", str(model), "--wmax", "16", "--max-running", "2")
    ran = invoke("simulate", str(trace), *flags, "--json")
    assert ran.exit_code == 0, ran.output
    lines = [line for line in ran.stderr.splitlines() if "server's work" in line]
    assert len(lines) == bool(said)
    assert said in "".join(lines)


def blocks(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_trace_of_block_hashes_is_known_by_its_rows(model: Path, tmp_path: Path) -> None:
    write_costs(COSTS, tmp_path / "costs.json")
    first = {"timestamp": 0, "input_length": 40, "output_length": 5, "hash_ids": [7, 8, 9]}
    again = {"timestamp": 9, "input_length": 60, "output_length": 5, "hash_ids": [7, 8, 10, 11]}
    other = {"timestamp": 9, "input_length": 20, "output_length": 5, "hash_ids": [7, 12]}
    path = blocks(tmp_path / "blocks.jsonl", first, {}, again, other, again)
    flags = ("--costs", str(tmp_path / "costs.json"), "--wmax", "16", "--clients", "1", "--json")
    taken = ("--model", str(model), "--requests", "3", "--block", "16")
    ran = invoke("simulate", str(path), *flags, *taken)
    assert ran.exit_code == 0, ran.output
    # the second goes on where the first one's reply ended, and the third parts from both at the first block's end,
    # where nobody knew yet that a state would be of use
    assert json.loads(ran.stdout)["rows"][0]["hit"] == pytest.approx(44 / 120)
    assert "3 requests taken; passed over: 1 rows" in ran.stderr
    assert "names no model: say --model" in error_line(invoke("simulate", str(path), *flags).stderr)
    assert "row 1 has 3 hashes for 40 tokens" in error_line(invoke("simulate", str(path), *flags, *taken[:2]).stderr)


def test_a_frozen_trace_is_not_cut_into_blocks(trace: Path, tmp_path: Path) -> None:
    write_costs(COSTS, tmp_path / "costs.json")
    ran = invoke("simulate", str(trace), "--costs", str(tmp_path / "costs.json"), "--requests", "3")
    assert "are for traces of block hashes" in error_line(ran.stderr)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ((), "give a trace to simulate"),
        (("trace.jsonl", "--eviction", "fifo"), "--eviction has 'fifo'; wanted any of lru, cost, coverage"),
        (("trace.jsonl", "--element", "int4"), "--element has 'int4'"),
        (("nowhere.jsonl",), "nowhere.jsonl cannot be read"),
    ],
)
def test_what_cannot_be_simulated_is_said(flags: tuple[str, ...], said: str, tmp_path: Path) -> None:
    write_costs(COSTS, tmp_path / "costs.json")
    assert said in error_line(invoke("simulate", *flags, "--costs", str(tmp_path / "costs.json")).stderr)


def test_costs_are_measured_on_this_machine(model: Path, tmp_path: Path) -> None:
    flags = ("--costs", str(tmp_path / "costs.json"), "--threads", "1", "--max-running", "2", "--chunk-size", "64")
    ran = invoke("simulate", "--measure", str(model), *flags)
    assert ran.exit_code == 0, ran.output
    found = read_costs(tmp_path / "costs.json")
    assert found.dtype == "float32"
    assert found.prefill.ms(256, 256 * 257 // 2) > 0
    assert found.decode.ms(1, 16) > 0
    assert found.copy_ms > 0
    assert found.unpack_ms > 0
    assert found.serving.before_ms(100) > 0
    assert found.serving.token >= 0
    assert found.serving.together == 2
    assert found.chunk_size == 64
    assert "the server adds" in ran.stdout


def test_a_model_without_a_template_is_measured_without_a_server(tmp_path: Path) -> None:
    model = tiny.save(tmp_path / "model")
    (model / "chat_template.jinja").unlink()
    flags = ("--costs", str(tmp_path / "costs.json"), "--threads", "1", "--max-running", "2")
    ran = invoke("simulate", "--measure", str(model), *flags)
    assert ran.exit_code == 0, ran.output
    found = read_costs(tmp_path / "costs.json")
    assert found.prefill.ms(256, 256 * 257 // 2) > 0
    assert found.serving == ServingCost()
    lines = [line for line in ran.stderr.splitlines() if "not measured" in line]
    assert lines == ["the server's work was not measured: the model has no chat template"]


def test_a_context_without_room_for_chats_is_measured_without_a_server(model: Path) -> None:
    engine = load_engine(str(model), device="cpu", max_context=64, max_running=2)
    assert "64 tokens is too short" in (obstacle(engine) or "")
    with behind_port(engine, "tiny") as (shared, url):
        found = measure_served(shared, url)
    assert found.prefill.ms(32, 32 * 33 // 2) > 0
    assert found.serving == ServingCost()


def test_a_server_that_does_not_start_leaves_no_engine(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def startup(self: uvicorn.Server, **_: Any) -> None:
        # as it does when the application cannot start
        self.should_exit = True

    before = set(threading.enumerate())
    engine = load_engine(str(model), device="cpu", max_running=2)
    monkeypatch.setattr(uvicorn.Server, "startup", startup)
    with pytest.raises(HoldoverError, match="before it had started"), behind_port(engine, "tiny"):
        pass
    assert not [one.name for one in set(threading.enumerate()) - before if one.name in ("holdover-engine", "server")]


def test_measuring_without_a_server_says_what_to_install(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    ran = invoke("simulate", "--measure", str(model), "--costs", str(tmp_path / "costs.json"))
    assert 'pip install "holdover[server,bench]"' in error_line(ran.stderr)
    assert not (tmp_path / "costs.json").exists()
