"""Two GPUs that share a model answer as one of them does, in every placement."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers import assert_close
from tests.parallel.cases import MODES
from tests.project.paths import ROOT

RTOL = 1e-4
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, Any]]:
    """Of two ranks, and of one process."""
    folder = tmp_path_factory.mktemp("nccl")
    return (
        answered(folder / "ranks.json", [*TORCHRUN, "-m", "tests.parallel.nccl"]),
        answered(folder / "alone.json", ["-m", "tests.parallel.nccl"], "--alone"),
    )


def answered(target: Path, program: list[str], *flags: str) -> dict[str, Any]:
    command = [sys.executable, *program, str(target), *flags]
    env = os.environ | {"HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(target.read_text())
    return found


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("mode", MODES)
def test_two_gpus_answer_as_one(mode: str, answers: tuple[dict[str, Any], dict[str, Any]]) -> None:
    found, wanted = (one[mode] for one in answers)
    for one, other in zip(found, wanted, strict=True):
        assert one["tokens"] == other["tokens"]
        for name in ("depth", "tier", "refresh_tokens"):
            assert one[name] == other[name]
        assert_close("logprobs", torch.tensor(one["logprobs"]), torch.tensor(other["logprobs"]), RTOL)
    assert found[1]["depth"] > 0
    assert found[1]["tier"] == "compressed"
    assert found[1]["refresh_tokens"] > 0
