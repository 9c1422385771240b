"""``holdover eval --protocol composed``."""

import json
from pathlib import Path

import pytest

from tests.cli.run import error_line, invoke

SMALL = ["--protocol", "composed", "--prompts", "2", "--chunks", "2", "--tokens", "48", "--threads", "1"]
WAYS = ["--selectors", "epic", "--initialisers", "last,exact", "--ratios", "0.25", "--seam-windows", "2"]


def test_rows_of_every_arm(model: Path, tmp_path: Path) -> None:
    facts = tmp_path / "facts.json"
    result = invoke("eval", str(model), *SMALL, *WAYS, "--json", str(facts))
    assert result.exit_code == 0, result.stderr
    found = json.loads(facts.read_text())
    assert (found["protocol"], found["schema"], found["count"], found["ratios"]) == ("composed", 1, 2, [0.25])
    assert {"model", "commit", "versions", "problems"} <= found.keys()
    arms = [(row["selector"], row["initialiser"], row["ratio"], row["window"]) for row in found["rows"]]
    assert list(dict.fromkeys(arms)) == [
        ("full", "-", 1.0, None),
        ("all", "-", 1.0, None),
        ("none", "last", 0.0, None),
        ("none", "exact", 0.0, None),
        ("epic", "last", 0.25, None),
        ("epic", "exact", 0.25, None),
        ("seam", "last", None, 2),
        ("seam", "exact", None, 2),
    ]
    assert all(row["low"] <= row["mean"] <= row["high"] and row["count"] == 2 for row in found["rows"])
    assert all(curve["count"] == 2 for curve in found["curves"])
    assert {cause["inputs"] for cause in found["causes"]} == {"true", "true-transitions", "true-offsets"}
    # a random model answers nothing, so there is nothing to take percents of
    assert {row["metric"] for row in found["rows"]} == {"right", "nll", "kl"}
    for text in ("Answers over composed contexts", "window 2", "Worst layers", "exact composition: worst at layer 0"):
        assert text in result.stdout
    # the finished work lies beside the figures
    assert error_line(invoke("eval", str(model), *SMALL, *WAYS, "--json", str(facts)).stderr).endswith("or remove it")
    rows = found["rows"]
    assert invoke("eval", str(model), *SMALL, *WAYS, "--json", str(facts), "--resume").exit_code == 0
    assert json.loads(facts.read_text())["rows"] == rows
    other = invoke("eval", str(model), *SMALL, *WAYS, "--json", str(facts), "--resume", "--seed", "1")
    assert "of another evaluation (problems was" in error_line(other.stderr)


def test_problems_of_a_file(model: Path, tmp_path: Path) -> None:
    path, facts = tmp_path / "problems.jsonl", tmp_path / "facts.json"
    row = {"chunks": ["the cat sat", "on the mat"], "question": "who sat?", "answers": ["the cat"], "task": "who"}
    path.write_text("\n".join([json.dumps(row)] * 3))
    few = ["--selectors", "seam", "--initialisers", "last", "--ratios", "0.5", "--seam-windows", "none"]
    read = ["--problems", str(path), "--limit", "2", "--json", str(facts)]
    result = invoke("eval", str(model), *SMALL, *few, *read)
    assert result.exit_code == 0, result.stderr
    found = json.loads(facts.read_text())
    assert (found["count"], found["seam_windows"], found["causes"]) == (2, [], [])
    assert {row["task"] for row in found["rows"]} == {"who"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--selectors", "best"], "selector must be one of"),
        (["--initialisers", "last,seams"], "choose among last, random, exact, zero"),
        (["--ratios", "0.2,2"], "ratio must be between 0 and 1"),
        (["--ratios", "few"], "--ratios is 'few'"),
        (["--seam-windows", "0"], "--seam-windows is '0'"),
        (["--tokens", "2"], "no record fits into a chunk of 2 tokens"),
        (["--problems", "none.jsonl"], "none.jsonl cannot be read"),
        (["--text", "some.txt"], "the composed protocol asks questions"),
    ],
)
def test_what_is_wrong_is_said(model: Path, arguments: list[str], message: str) -> None:
    result = invoke("eval", str(model), *SMALL, *arguments)
    assert result.exit_code == 2
    assert message in error_line(result.stderr)
