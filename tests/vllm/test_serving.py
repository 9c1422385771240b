"""Stock vLLM with the plug-in, on a CPU: six engines, each in a process of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.project.paths import ROOT

pytestmark = pytest.mark.timeout(1500)

BLOCK = 384
Run = Callable[[str], dict[str, Any]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("vllm")

    failed = set[str]()

    @cache
    def once(name: str) -> dict[str, Any]:
        assert name not in failed, f"the engine of {name} failed before"
        failed.add(name)
        if name == "restarted":
            once("lossless")
        plugins = {"VLLM_PLUGINS": ""} if name == "stock" else {}
        command = [sys.executable, "-m", "tests.vllm.scenarios", name, str(folder)]
        done = subprocess.run(
            command, cwd=ROOT, env=environment() | plugins, capture_output=True, text=True, check=False, timeout=600
        )
        assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
        facts = json.loads((folder / f"{name}.json").read_text())
        failed.remove(name)
        return facts | {"log": done.stdout + done.stderr}

    return once


def environment() -> dict[str, str]:
    own = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    stub = str(Path(__file__).parent / "stub")
    return own | {
        "PYTHONPATH": os.pathsep.join(filter(None, [stub, own.get("PYTHONPATH")])),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }


def tokens(answers: list[dict[str, Any]]) -> list[list[int]]:
    return [answer["tokens"] for answer in answers]


def cached(answers: list[dict[str, Any]]) -> list[int]:
    return [answer["cached"] for answer in answers]


def agree(got: list[dict[str, Any]], want: list[dict[str, Any]]) -> bool:
    """Whether greedy tokens are the same up to where two were closer than rounding moves them."""
    shared = [shared_length(a["tokens"], b["tokens"]) for a, b in zip(got, want, strict=True)]
    moved = [
        abs(x - y)
        for a, b, count in zip(got, want, shared, strict=True)
        for x, y in zip(a["leads"][:count], b["leads"][:count], strict=True)
    ]
    noise = max(moved)
    assert noise < 0.5, moved
    differ = [b["leads"][count] for b, count in zip(want, shared, strict=True) if count < len(b["tokens"])]
    return all(lead <= 2 * noise for lead in differ)


def shared_length(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), len(a))


def test_a_plugin_that_nothing_asks_for_changes_nothing(run: Run) -> None:
    for name in ("cold", "crossing"):
        assert tokens(run("off")[name]) == tokens(run("stock")[name])
    assert cached(run("stock")["cold"]) == [0, 0, 0]
    assert "holdover:" not in run("off")["log"]


def test_a_line_each_says_what_is_active(run: Run) -> None:
    lines = [line for line in run("lossless")["log"].splitlines() if "holdover:" in line]
    (tier,) = (line for line in lines if "checkpoint tier" in line)
    assert "6 recurrent and 2 attention layers" in tier
    assert "ragged records" in tier
    (decode,) = (line for line in lines if "deferred decode" in line)
    assert "a fold every 8 tokens" in decode
    assert len(lines) == 2
    assert not any("deferred decode" in line for line in run("packed")["log"].splitlines())


@pytest.mark.parametrize("name", ["plain", "lossless", "restarted"])
def test_deferred_decode_answers_as_vllm_does(run: Run, name: str) -> None:
    assert agree(run(name)["crossing"], run("stock")["crossing"])


@pytest.mark.parametrize(("name", "interval"), [("plain", 16), ("lossless", 8), ("restarted", 2)])
def test_deferred_decode_ran_and_folded(run: Run, name: str, interval: int) -> None:
    decoded = run(name)["decoded"]
    assert decoded["tokens"] >= 3 * 15
    # a fold every M tokens of each sequence, and at most one more at its end
    assert 0.5 * decoded["tokens"] / interval < decoded["folds"] < decoded["tokens"] / interval + 8


def test_preempted_requests_go_on(run: Run) -> None:
    assert run("plain")["preemptions"] > 0
    assert run("restarted")["preemptions"] > 0


def test_what_is_kept_of_a_boundary_that_decoding_reached_is_its_state(run: Run) -> None:
    seen = run("restarted")
    assert cached(seen["reached"]) == [BLOCK]
    assert cached(seen["apart"]) == [0]
    assert agree(seen["reached"], seen["apart"])
    # bfloat16 states, of which one was computed token by token in its last 8
    assert 0 < seen["drift"] < 2e-2


def test_what_vllm_lost_is_restored_bit_for_bit(run: Run) -> None:
    seen = run("lossless")
    assert agree(seen["cold"], run("stock")["cold"])
    assert tokens(seen["restored"]) == tokens(seen["cold"])
    assert cached(seen["restored"]) == [3 * BLOCK, 2 * BLOCK, 0]
    # every page that vLLM had cached, states and rows, is there again
    assert seen["before"]
    assert seen["after"] == seen["before"]


def test_a_turn_continues_the_entry_before_it(run: Run) -> None:
    seen = run("lossless")
    assert [4 * BLOCK, 3 * BLOCK] in seen["chain"]
    assert cached(seen["first"]) == [3 * BLOCK]
    assert cached(seen["again"]) == [4 * BLOCK]
    assert tokens(seen["again"]) == tokens(seen["first"])


def test_a_boundary_that_decoding_reaches_is_kept(run: Run) -> None:
    seen = run("lossless")
    assert cached(seen["reached"]) == [BLOCK]
    assert tokens(seen["reached"]) == tokens(seen["reaching"])


def test_counters_tell_what_happened(run: Run) -> None:
    events = run("lossless")["events"]
    wanted = {"hit": 3, "hit_tokens": 9 * BLOCK, "save": 3, "written": 6, "restored_host": 3, "miss_absent": 3}
    assert events.items() >= wanted.items(), events
    assert events["miss_short"] == 2
    assert not events.keys() & {"failed", "refused", "load_failed", "save_failed"}


def test_a_restart_restores_from_disk_and_passes_over_damage(run: Run) -> None:
    seen = run("restarted")
    assert agree(seen["warm"], run("stock")["cold"][:2])
    assert cached(seen["warm"])[0] == 3 * BLOCK
    assert seen["events"]["restored_disk"] == 1
    assert seen["events"]["load_failed"] == 1
    assert "cannot be used" in seen["log"]


def test_a_store_that_fails_fails_no_request(run: Run) -> None:
    seen = run("restarted")
    assert len(seen["lost"][0]["tokens"]) == 16
    assert seen["after"]["failed"] == 1


def test_records_are_the_cores_own(run: Run) -> None:
    seen = run("packed")
    assert seen["record"], "the kept record differs from what the codec packs"
    assert seen["unpacked"], "the restored pages differ from what the codec unpacks"
    assert 3 * seen["bytes"][0] < seen["bytes"][1]
    assert cached(seen["restored"]) == [3 * BLOCK]
    assert seen["events"]["restored_host"] == 1


def test_exact_requests_get_no_approximate_state(run: Run) -> None:
    seen = run("packed")
    exact = tokens(run("stock")["cold"])[:1]
    assert tokens(seen["exact"]) == tokens(seen["again"]) == exact
    assert cached(seen["exact"]) == cached(seen["again"]) == [0]
    assert seen["events"]["miss_exact"] == 2
