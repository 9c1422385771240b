"""Stock vLLM with the plug-in, on a CPU: five engines, each in a process of its own; those of `full` come on top."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.project.paths import ROOT

pytestmark = pytest.mark.timeout(1500)
full = pytest.mark.full

Run = Callable[[str], dict[str, Any]]

BLOCK = {"": 384, "next_": 128}
# a scenario goes on where another left off
AFTER = {"restarted": "lossless", "next_restarted": "next_lossless", "parallel_again": "parallel"}
STOCK = {"stock", "next_stock"}
KILLED = {"lossless", "next_lossless"}

tiny_and_next = pytest.mark.parametrize("model", ["", pytest.param("next_", marks=full)])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("vllm")

    failed = set[str]()

    @cache
    def once(name: str) -> dict[str, Any]:
        assert name not in failed, f"the engine of {name} failed before"
        failed.add(name)
        if name in AFTER:
            once(AFTER[name])
        command = [sys.executable, "-m", "tests.vllm.scenarios", name, str(folder)]
        done = subprocess.run(
            command, cwd=ROOT, env=environment(name), capture_output=True, text=True, check=False, timeout=600
        )
        wanted = -signal.SIGKILL if name in KILLED else 0
        assert done.returncode == wanted, (done.stdout + done.stderr)[-6000:]
        facts = json.loads((folder / f"{name}.json").read_text())
        failed.remove(name)
        return facts | {"log": done.stdout + done.stderr}

    return once


def environment(name: str) -> dict[str, str]:
    own = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    stub = str(Path(__file__).parent / "stub")
    return own | {
        "PYTHONPATH": os.pathsep.join(filter(None, [stub, own.get("PYTHONPATH")])),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        # vLLM wants a NUMA node for every rank, or to be told where each runs
        **({"VLLM_CPU_OMP_THREADS_BIND": "0|1"} if name.startswith("parallel") else {}),
        **({"VLLM_PLUGINS": ""} if name in STOCK else {}),
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


@tiny_and_next
def test_a_line_each_says_what_is_active(run: Run, model: str) -> None:
    lines = [line for line in run(model + "lossless")["log"].splitlines() if "holdover: " in line]
    (tier,) = (line for line in lines if "checkpoint tier" in line)
    assert f"{3 if model else 6} recurrent and {1 if model else 2} attention layers" in tier
    assert "ragged records" in tier
    (decode,) = (line for line in lines if "deferred decode" in line)
    assert "a fold every 8 tokens" in decode
    assert len(lines) == 2


DEFERRED = [
    ("lossless", 8),
    ("restarted", 2),
    *(pytest.param(*case, marks=full) for case in (("plain", 16), ("next_plain", 2), ("next_lossless", 8))),
    *(pytest.param(*case, marks=full) for case in (("next_restarted", 16), ("parallel", 8))),
]


@pytest.mark.parametrize(("name", "interval"), DEFERRED)
def test_deferred_decode_answers_as_vllm_does(run: Run, name: str, interval: int) -> None:
    seen = run(name)
    wanted = "stock" if not name.startswith(("next_", "parallel")) else "next_stock"
    assert agree(seen["crossing"], run(wanted)["crossing"])
    # it ran: a fold every M tokens of each sequence, and at most one more at its end and at every boundary
    decoded = seen["decoded"]
    assert decoded["tokens"] >= 3 * 15
    assert 0.5 * decoded["tokens"] / interval < decoded["folds"] < decoded["tokens"] / interval + 24


@pytest.mark.parametrize(
    "name", ["restarted", *(pytest.param(x, marks=full) for x in ("plain", "next_plain", "next_restarted"))]
)
def test_preempted_requests_go_on(run: Run, name: str) -> None:
    assert run(name)["preemptions"] > 0


@tiny_and_next
def test_what_is_kept_of_a_boundary_that_decoding_reached_is_its_state(run: Run, model: str) -> None:
    seen = run(model + "restarted")
    assert cached(seen["reached"]) == [BLOCK[model]]
    assert cached(seen["apart"]) == [0]
    assert agree(seen["reached"], seen["apart"])
    # bfloat16 states, of which one was computed token by token in its last 8
    assert 0 < seen["drift"] < 2e-2


@tiny_and_next
def test_what_vllm_lost_is_restored_bit_for_bit(run: Run, model: str) -> None:
    seen, block = run(model + "lossless"), BLOCK[model]
    assert agree(seen["cold"], run(model + "stock")["cold"])
    assert tokens(seen["restored"]) == tokens(seen["cold"])
    assert cached(seen["restored"]) == [3 * block, 2 * block, 0]
    # every page that vLLM had cached, states and rows, is there again
    assert seen["before"]
    assert seen["after"] == seen["before"]
    wanted = {"hit": 2, "hit_tokens": 5 * block, "restored_host": 2}
    assert seen["events"].items() >= wanted.items(), seen["events"]
    assert not seen["events"].keys() & {"failed", "refused", "load_failed", "save_failed"}


@tiny_and_next
def test_a_turn_resumes_where_the_one_before_it_ended(run: Run, model: str) -> None:
    seen, block = run(model + "lossless"), BLOCK[model]
    # all tokens of the turn before but the last, whose state was never computed
    end = 3 * block + block * 9 // 10 + 15
    assert cached(seen["first"]) == [end]
    assert cached(seen["fresh"]) == [0]
    assert agree(seen["first"], seen["fresh"])
    # and what it left at a boundary continues that
    deeper = (end + 1 + block - 1) // block * block
    assert [deeper, end] in seen["chain"]
    assert cached(seen["again"]) == [deeper]
    assert agree(seen["again"], seen["fresh"])


@tiny_and_next
def test_an_end_that_decoding_reached_is_kept_with_its_log(run: Run, model: str) -> None:
    seen = run(model + "lossless")
    assert cached(seen["reached"]) == [BLOCK[model] - 8 + 15]
    assert cached(seen["reaching"]) == [0]
    assert agree(seen["reached"], seen["reaching"])


@tiny_and_next
def test_a_full_disk_fails_no_request(run: Run, model: str) -> None:
    seen = run(model + "lossless")
    assert len(seen["full"][0]["tokens"]) == 16
    assert seen["missed"]["failed"] == 2
    assert "failed" not in seen["events"]


@tiny_and_next
def test_a_kill_during_a_store_leaves_whole_entries(run: Run, model: str) -> None:
    seen = run(model + "restarted")
    assert (seen["torn"], seen["left"]) == (1, 0)
    assert cached(seen["warm"])[0] == 3 * BLOCK[model]
    assert seen["events"]["restored_disk"] == 1


@tiny_and_next
def test_a_restart_restores_from_disk_and_passes_over_damage(run: Run, model: str) -> None:
    seen = run(model + "restarted")
    assert agree(seen["warm"], run(model + "stock")["cold"][:2])
    assert seen["events"]["load_failed"] == 1
    assert "cannot be used" in seen["log"]


@tiny_and_next
def test_an_entry_whose_parent_was_deleted_is_passed_over(run: Run, model: str) -> None:
    seen = run(model + "restarted")
    assert seen["orphaned"]["load_failed"] == seen["events"]["load_failed"] + 1
    assert agree(seen["orphan"], run(model + "lossless")["fresh"])


@tiny_and_next
def test_a_store_that_fails_fails_no_request(run: Run, model: str) -> None:
    seen = run(model + "restarted")
    assert len(seen["lost"][0]["tokens"]) == 16
    assert seen["after"]["failed"] == 1


def test_records_are_the_cores_own(run: Run) -> None:
    seen = run("packed")
    assert seen["omitted"] > 0
    assert seen["record"], "the kept record differs from what the codec packs"
    assert seen["unpacked"], "the restored pages differ from what the codec unpacks"
    assert 2 * seen["bytes"][0] < seen["bytes"][1]
    assert cached(seen["restored"]) == [3 * BLOCK["next_"]]
    assert seen["events"]["restored_host"] == 1
    assert seen["decoded"]["folds"] > 0


def test_exact_requests_get_no_approximate_state(run: Run) -> None:
    seen = run("packed")
    assert tokens(seen["exact"]) == tokens(seen["again"]) == tokens(seen["cold"])
    assert cached(seen["exact"]) == cached(seen["again"]) == [0]
    assert seen["events"]["miss_exact"] == 2


@full
def test_hits_within_a_block_survive_too(run: Run) -> None:
    seen = run("units")
    tail = (seen["length"] - 1) // 32 * 32
    assert cached(seen["stocked"]) == cached(seen["restored"]) == [tail]
    assert tail % BLOCK["next_"]
    assert tokens(seen["restored"]) == tokens(seen["stocked"])
    assert agree(seen["restored"], seen["cold"])
    assert seen["events"]["restored_disk"] == 1


@full
def test_ranks_restore_their_parts_bit_for_bit(run: Run) -> None:
    seen, block = run("parallel"), BLOCK["next_"]
    assert agree(seen["cold"], run("next_stock")["cold"])
    assert tokens(seen["restored"]) == tokens(seen["cold"])
    assert cached(seen["restored"]) == [3 * block, 2 * block, 0]
    assert seen["before"]
    assert all(len(digests) == 2 for digests in seen["before"].values())
    assert seen["after"] == seen["before"]
    assert seen["folders"] == ["0-of-2", "1-of-2"]
    # two requests, on two ranks
    assert seen["later"]["restored_host"] == 4


@full
def test_what_one_rank_cannot_load_no_rank_uses(run: Run) -> None:
    seen, block = run("parallel_again"), BLOCK["next_"]
    assert cached(seen["cold"])[0] == 3 * block
    # one rank of two failed, for one request of two
    assert seen["events"]["load_failed"] == 1
    assert seen["events"]["restored_disk"] == 3
    assert agree(seen["cold"], run("parallel")["cold"])
    # and it was kept anew by both
    assert seen["after"] == seen["before"]
    assert cached(seen["restored"]) == [3 * block, 2 * block, 0]
