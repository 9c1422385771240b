"""``holdover eval``."""

import importlib.util
import json
from pathlib import Path

import pytest

from holdover.cli import measuring
from holdover.errors import ConfigError
from tests.cli.run import error_line, invoke

TEXT = "".join(f"the {i} cats sat on mat {i * i}. " for i in range(60))
SMALL = ["--prefix", "20", "--following", "4", "--limit", "3", "--block", "2", "--threads", "1", "--wmax", "4"]


@pytest.fixture
def text(tmp_path: Path) -> str:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return str(path)


def test_arms_of_the_replay_protocol(model: Path, text: str, tmp_path: Path) -> None:
    facts = tmp_path / "facts.json"
    ways = ["--protocol", "warm-replay", "--text", text, "--arms", "dense,wr,int8", "--json", str(facts)]
    result = invoke("eval", str(model), *SMALL, *ways)
    assert result.exit_code == 0, result.stderr
    rows = json.loads(facts.read_text())["rows"]
    assert [(row["arm"], row["w_max"], row["count"], row["replays"]) for row in rows] == [
        ("dense", None, 3, 1),
        ("wr", 4, 3, 1),
        ("int8", None, 3, 1),
    ]
    assert all(row["hit"] == 19 / 20 and row["loaded"] == 1 for row in rows)
    assert rows[0]["difference"] is None
    assert rows[2]["difference_low"] <= rows[2]["difference"] <= rows[2]["difference_high"]
    assert "dense" in result.stdout
    # the finished work lies beside the figures: it is refused unasked, and taken over when asked for
    assert error_line(invoke("eval", str(model), *SMALL, *ways).stderr).endswith("or remove it")
    facts.unlink()
    assert invoke("eval", str(model), *SMALL, *ways, "--resume").exit_code == 0
    assert json.loads(facts.read_text())["rows"] == rows
    other = invoke("eval", str(model), *SMALL, *ways, "--resume", "--replays", "2")
    assert "of another evaluation (replays was 1 and is 2)" in error_line(other.stderr)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give --tasks"),
        (["--tasks", "x", "--resume"], "name that file"),
        (["--tasks", "x", "--json", "none/x.json"], "name one in a directory that exists"),
        (["--tasks", "x", "--json", "."], "where no file can be written"),
        (["--protocol", "warm-replay"], "needs either --problems or --text"),
        (["--protocol", "warm-replay", "--text", "none.txt"], "none.txt cannot be read"),
    ],
)
def test_what_is_missing_is_said(model: Path, arguments: list[str], message: str) -> None:
    result = invoke("eval", str(model), *arguments)
    assert result.exit_code == 2
    assert message in error_line(result.stderr)


@pytest.mark.skipif(importlib.util.find_spec("lm_eval") is not None, reason="lm-eval is installed")
def test_the_harness_is_asked_for_by_name(model: Path) -> None:
    assert "pip install 'holdover[eval]'" in error_line(invoke("eval", str(model), "--tasks", "niah_single_1").stderr)


def test_figures_are_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "facts.json"
    path.write_text("old")
    with pytest.raises(TypeError):
        measuring.write(path, {"rows": [object()]})
    assert [one.read_text() for one in tmp_path.iterdir()] == ["old"]
    with pytest.raises(ConfigError, match=r"cannot be written: .* so --resume writes it"):
        measuring.write(path / "below.json", {})
    measuring.write(path, {"rows": []})
    assert json.loads(path.read_text()) == {"rows": []}
