import hashlib
from pathlib import Path

import pytest

from holdover.retention.plan_file import read_plan
from holdover.weights.digest import model_digest
from holdover.weights.source import resolve
from tests.cli.run import error_line, invoke

TEXT = "".join(f"the {i} cats sat on mat {i * i}. " for i in range(60))


def calibrate(model: Path, folder: Path, budget: float, *more: str):
    text = folder / "text.txt"
    text.write_text(TEXT)
    sizes = ["--wmax", "4,8", "--prefix", "64", "--tokens", "4", "--continuations", "16", "--threads", "1"]
    return invoke("calibrate", str(model), "--text", str(text), "--budget", str(budget), *sizes, *more)


def test_the_plan_is_written_with_all_that_was_measured(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "plans" / "plan.safetensors"
    result = calibrate(model, tmp_path, 100.0, "--a-s", "-3", "-o", str(path))
    assert result.exit_code == 0, result.stderr
    plan = read_plan(path)
    gate = plan.quality
    assert gate is not None
    assert 0 < plan.offsets[-1] < plan.units
    # everything passes: the largest cutoff, the fewest bytes, no refresh
    assert (plan.w_max, gate.chosen.w_max, gate.chosen.refresh, gate.chosen.element) == (8, 8, "none", "int8")
    assert len(gate.sweep) == 8
    assert {(p.w_max, p.refresh, p.element) for p in gate.sweep} == {
        (w, refresh, element) for w in (4, 8) for refresh in ("none", "suffix") for element in ("full", "int8")
    }
    assert (gate.budget, gate.continuations, gate.tokens) == (100.0, 16, 4)
    assert gate.model_digest == model_digest(resolve(str(model)))
    assert gate.text_digest == hashlib.sha256(TEXT.encode()).hexdigest()
    assert "chosen" in result.stdout
    assert "16 continuations of 4 tokens; times on" in result.stdout
    assert f"wrote {path}" in result.stdout
    again = calibrate(model, tmp_path, 100.0, "-o", str(path))
    assert "overwrite it with --force" in error_line(again.stderr)
    assert read_plan(path).digest == plan.digest


def test_the_users_directory_is_the_default(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDOVER_PLANS", str(tmp_path / "plans"))
    assert calibrate(model, tmp_path, 100.0).exit_code == 0
    (path,) = (tmp_path / "plans").iterdir()
    assert read_plan(path).quality is not None


def test_no_point_within_the_budget_writes_nothing(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "plan.safetensors"
    result = calibrate(model, tmp_path, 0.0, "--wmax", "16", "-o", str(path))
    assert result.exit_code == 2
    assert "no operating point meets the budget of 0 nats" in error_line(result.stderr)
    # the sweep is shown all the same
    assert "P95 KL" in result.stdout
    assert not path.exists()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--wmax", "32"], "a cutoff of 32 needs prefixes up to 128 tokens"),
        (["--wmax", "8,x"], "--wmax is '8,x'"),
        (["--wmax", "2"], "w_max is 2"),
        (["--budget", "-1"], "--budget is -1"),
        (["--budget", "nan"], "--budget is nan"),
        (["--continuations", "5000"], "give a longer text, fewer --continuations"),
        (["--text", "/nowhere/text.txt"], "cannot be read"),
    ],
)
def test_what_cannot_be_used_is_said(model: Path, tmp_path: Path, more: list[str], message: str) -> None:
    result = calibrate(model, tmp_path, 0.1, *more)
    assert result.exit_code == 2
    assert message in error_line(result.stderr)
