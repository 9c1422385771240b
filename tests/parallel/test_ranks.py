"""Engines of two ranks answer as one process does, in every placement."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
import torch

from tests.cli.run import environment
from tests.helpers import assert_close
from tests.parallel import models, script
from tests.parallel.cases import CASES, Case
from tests.project.paths import ROOT

RTOL = 1e-4


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Every case, run once in one group."""
    target = tmp_path_factory.mktemp("ranks") / "results.json"
    command = [sys.executable, "-m", "tests.parallel.worker", str(target)]
    env = environment() | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(target.read_text())
    return found


@pytest.mark.parametrize("name", [*models.ARCHITECTURE_ROWS, *models.ONE_GROUP])
def test_every_architecture_gives_the_same_distributions(name: str, results: dict[str, Any]) -> None:
    one = results["logits"][name]
    assert_close(name, torch.tensor(one["found"]), torch.tensor(one["wanted"]), RTOL)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_ranks_answer_as_one_process(case: Case, results: dict[str, Any]) -> None:
    one = results["cases"][case.name]
    assert len(one["found"]) == len(one["wanted"]) > 1
    for found, wanted in zip(one["found"], one["wanted"], strict=True):
        assert (found["tokens"], found["cache"]) == (wanted["tokens"], wanted["cache"])
        assert_close("logprobs", torch.tensor(found["logprobs"]), torch.tensor(wanted["logprobs"]), RTOL)


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.run is script.conversation], ids=lambda case: case.name
)
def test_a_conversation_resumes_at_its_checkpoint(case: Case, results: dict[str, Any]) -> None:
    one = results["cases"][case.name]
    hit = one["found"][1]["cache"]
    tier = "compressed" if case.options else "native"
    assert (hit["state_depth"], hit["tier"]) == (script.LEFT, tier)
    is_refreshed = case.options.get("refresh") == "suffix"
    assert (hit["refresh_tokens"] > 0) == is_refreshed
    assert (hit["omitted"] > 0) == case.is_planned


@pytest.mark.parametrize("family", models.FAMILIES)
def test_balanced_records_are_smaller_and_only_they_move(family: str, results: dict[str, Any]) -> None:
    off, storage, hybrid = (results["cases"][f"{family}-{mode}-none"] for mode in ("off", "storage", "hybrid"))
    assert (off["mode"], storage["mode"], hybrid["mode"]) == ("off", "storage", "hybrid")
    assert off["moved"] == 0 < storage["moved"]
    # rank 0 computes the first heads, of which most is retained
    assert storage["bytes"] < off["bytes"]
    assert hybrid["moved"] < storage["moved"]


def test_pressure_was_felt(results: dict[str, Any]) -> None:
    counters = results["cases"]["pressure"]["counters"]
    assert min(counters[name] for name in ("states_evicted", "rows_evicted", "demotions")) > 0, counters
