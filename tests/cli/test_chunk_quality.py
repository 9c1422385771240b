"""``holdover chunks diagnose`` and ``calibrate``."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from holdover.engine.chunks.gate import GATE_NAME, read_gate
from holdover.weights.digest import model_digest
from holdover.weights.source import resolve
from tests.cli.run import error_line, invoke

TEXT = "".join(f"the {i} cats sat on mat {i * i}. " for i in range(60))
SMALL = ["--chunks", "2", "--tokens", "8", "--threads", "1"]


@pytest.fixture
def text(tmp_path: Path) -> str:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return str(path)


def calibrate(model: Path, text: str, budget: float, *more: str) -> Any:
    sizes = ["--contexts", "3", "--query", "2", "--following", "4"]
    ways = ["--selector", "none,epic", "--initialiser", "last,seams", "--ratios", "0.25,0.5"]
    return invoke(
        "chunks", "calibrate", str(model), "--text", text, "--budget", str(budget), *SMALL, *sizes, *ways, *more
    )


def test_errors_as_table_json_and_picture(model: Path, text: str, tmp_path: Path) -> None:
    facts, png = tmp_path / "facts.json", tmp_path / "errors.png"
    files = ["--json", str(facts), "--png", str(png)]
    result = invoke("chunks", "diagnose", str(model), "--text", text, "--contexts", "2", *SMALL, *files)
    assert result.exit_code == 0, result.stderr
    assert "mean of 2 contexts of 2 chunks of 8 tokens" in result.stdout
    rows = [line.split() for line in result.stdout.splitlines()]
    assert ["layer", "last", "random", "exact", "seams", "zero"] in rows
    (worst,) = (row for row in rows if row[:1] == ["worst"])
    found = json.loads(facts.read_text())
    assert (found["contexts"], found["chunks"], found["tokens"]) == (2, 2, 8)
    assert list(found["errors"]) == ["last", "random", "exact", "seams", "zero"]
    # one recurrent layer, the first
    assert found["errors"]["zero"] == {"0": 1.0}
    assert found["errors"]["seams"]["0"] < 1e-5 < found["errors"]["exact"]["0"] < found["errors"]["last"]["0"]
    assert float(worst[1]) == pytest.approx(found["errors"]["last"]["0"], rel=0.06)
    assert png.read_bytes().startswith(b"\x89PNG")


def test_questions_of_the_bundled_model(tmp_path: Path) -> None:
    facts = tmp_path / "facts.json"
    sizes = ["--chunks", "2", "--tokens", "32", "--contexts", "1", "--prompts", "2", "--threads", "1"]
    ways = ["--selector", "epic", "--initialiser", "last", "--score", "--json", str(facts)]
    result = invoke("chunks", "diagnose", "tiny-gdn", *sizes, *ways)
    assert result.exit_code == 0, result.stderr
    assert "2 questions, ratio 0.2, window stream" in result.stdout
    rows = json.loads(facts.read_text())["score"]["rows"]
    assert [(row["selector"], row["initialiser"]) for row in rows] == [
        ("full", "-"),
        ("all", "-"),
        ("none", "last"),
        ("epic", "last"),
    ]
    assert [row["recomputed"] for row in rows[:3]] == [1.0, 1.0, 0.0]
    assert rows[0]["percent"] == rows[1]["percent"] == 100


def test_models_that_were_not_trained_for_the_questions(model: Path) -> None:
    sizes = ["--chunks", "2", "--tokens", "64", "--contexts", "1", "--prompts", "1", "--threads", "1"]
    result = invoke("chunks", "diagnose", str(model), *sizes, "--initialiser", "last", "--score")
    assert result.exit_code == 2
    assert "this score says nothing of this model" in error_line(result.stderr)


def test_a_gate_is_written_with_all_that_was_measured(model: Path, text: str, tmp_path: Path) -> None:
    path = tmp_path / "gates" / GATE_NAME
    result = calibrate(model, text, 100.0, "-o", str(path))
    assert result.exit_code == 0, result.stderr
    gate = read_gate(path)
    # everything passes: nothing is run again, and nothing is kept for it
    assert (gate.chosen.selector, gate.chosen.initialiser, gate.chosen.cost) == ("none", "last", 0)
    # epic with stream and context windows, and with seams; none with both states
    assert len(gate.sweep) == 2 + 2 * 3
    assert (gate.contexts, gate.chunks, gate.tokens, gate.query, gate.following) == (3, 2, 8, 2, 4)
    assert (gate.budget, gate.dtype) == (100.0, "float32")
    assert gate.model_digest == model_digest(resolve(str(model)))
    assert gate.text_digest == hashlib.sha256(TEXT.encode()).hexdigest()
    assert set(gate.versions) == {"holdover", "torch"}
    assert f"wrote {path}" in result.stdout
    assert "overwrite it with --force" in error_line(calibrate(model, text, 100.0, "-o", str(path)).stderr)
    assert read_gate(path) == gate


def test_what_meets_no_budget_writes_nothing(model: Path, text: str, tmp_path: Path) -> None:
    path = tmp_path / GATE_NAME
    result = calibrate(model, text, 0.0, "-o", str(path))
    assert result.exit_code == 2
    assert "nothing meets the budget of 0 nats" in error_line(result.stderr)
    # the sweep is shown all the same
    assert "P95 KL" in result.stdout
    assert not path.exists()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--budget", "-1"], "--budget is -1"),
        (["--selector", "some"], "selector must be one of"),
        (["--initialiser", "some"], "initialiser must be one of"),
        (["--window", "some"], "window must be one of"),
        (["--ratios", "x"], "--ratios is 'x'"),
        (["--ratios", "2"], "ratio must be between 0 and 1"),
        (["--contexts", "500"], "give a longer text, or fewer --contexts"),
        (["--tokens", "2000"], "do not fit into the model's context"),
        (["--text", "/nowhere/text.txt"], "cannot be read"),
    ],
)
def test_what_cannot_be_used_is_said(model: Path, text: str, more: list[str], message: str) -> None:
    result = calibrate(model, text, 0.1, *more)
    assert result.exit_code == 2
    assert message in error_line(result.stderr)
