"""``holdover eval`` of decode from a log, alone and with everything else."""

import json
from pathlib import Path

import pytest

from tests.cli.run import error_line, invoke

TEXT = "".join(f"the {i} cats sat on mat {i * i}. " for i in range(60))


@pytest.fixture
def text(tmp_path: Path) -> str:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return str(path)


def test_deferred(model: Path, text: str, tmp_path: Path) -> None:
    facts = tmp_path / "facts.json"
    sizes = ["--prefix", "20", "--limit", "2", "--steps", "20", "--intervals", "4", "--log", "engine,bf16/bf16"]
    command = ["eval", str(model), "--protocol", "deferred", "--text", text, *sizes, "--json", str(facts)]
    result = invoke(*command, "--threads", "1")
    assert result.exit_code == 0, result.stderr
    found = json.loads(facts.read_text())
    assert (found["schema"], found["protocol"], found["dtype"]) == (1, "deferred", "float32")
    assert {"model", "versions", "commit", "problems"} <= found.keys()
    assert [row["arm"] for row in found["overall"]] == ["prefill", "m4-fp32/fp32", "m4-bf16/bf16"]
    assert all(row["count"] == 2 and row["low"] <= row["mean"] <= row["high"] for row in found["rows"])
    assert "m4-bf16/bf16" in result.stdout
    facts.unlink()
    assert invoke(*command, "--threads", "1", "--resume").exit_code == 0
    assert json.loads(facts.read_text())["rows"] == found["rows"]
    assert "choose 2 to 64" in error_line(invoke(*command, "--resume", "--intervals", "1").stderr)


def test_combinations(model: Path, text: str, tmp_path: Path) -> None:
    facts, problems = tmp_path / "facts.json", tmp_path / "problems.jsonl"
    asked = [{"prompt": "the cat sat on the cat " * 4, "answers": ["x"]} for _ in range(2)]
    problems.write_text("\n".join(map(json.dumps, asked)))
    sizes = ["--restores", "1", "--following", "12", "--arms", "dense,int8,random", "--threads", "1"]
    command = ["eval", str(model), "--protocol", "combinations", *sizes, "--json", str(facts)]
    cut = ["--text", text, "--prefix", "40", "--limit", "1"]
    result = invoke(*command, *cut, "--no-compose")
    assert result.exit_code == 0, result.stderr
    found = json.loads(facts.read_text())
    ways = ("dense/off", "deferred/off", "deferred/ngram")
    wanted = [*(f"{kind}/{way}" for kind in ("dense", "int8") for way in ways), "int8/deferred/off/once"]
    assert [row["arm"] for row in found["rows"]] == wanted
    assert all(row["count"] == 1 and row["work"]["loads"] == (row["checkpoint"] == "int8") for row in found["rows"])
    assert (found["chunks"], found["growth"]) == ([], [])
    assert "int8/deferred/off/once" in result.stdout
    other = invoke(*command, "--resume", "--problems", str(problems))
    assert "of another evaluation (conversations was" in error_line(other.stderr)
    # what is on record stays, and contexts are added to it
    composed = invoke(*command, *cut, "--resume")
    assert composed.exit_code == 0, composed.stderr
    more = json.loads(facts.read_text())
    assert more["rows"] == found["rows"]
    assert list(dict.fromkeys(row["state"] for row in more["chunks"])) == ["full", "bf16", "packed", "int8"]


@pytest.mark.parametrize("protocol", ["deferred", "combinations"])
def test_what_is_missing_is_said(model: Path, protocol: str) -> None:
    result = invoke("eval", str(model), "--protocol", protocol)
    assert result.exit_code == 2
    assert f"the {protocol} protocol needs either --problems or --text" in error_line(result.stderr)
