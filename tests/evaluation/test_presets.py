"""Presets set options that exist, and give way to those that are given."""

from __future__ import annotations

import inspect
import json
import sys
from pathlib import Path

import pytest

from holdover.cli.evaluate import evaluate
from holdover.errors import ConfigError
from holdover.evaluation.presets import PRESETS, Preset, preset
from holdover.evaluation.protocols.arms import KINDS
from tests.cli.run import error_line, invoke
from tests.evaluation.passage_files import install
from tests.server import tiny


def test_every_option_is_one_of_the_command_s() -> None:
    known = inspect.signature(evaluate).parameters
    for name, found in PRESETS.items():
        assert found.options.keys() <= known.keys(), name
        assert set(str(found.options.get("arms", "dense")).split(",")) <= set(KINDS), name


def test_the_papers_sets_are_there() -> None:
    """Counts and settings of DASC App. C.2 and LinearKV §4.1."""
    assert len(str(PRESETS["ruler"].options["tasks"]).split(",")) == 13
    counts = {name: PRESETS[name].options.get("limit") for name in PRESETS}
    assert counts["longbench-qa"] == 200
    assert counts["longbench-summaries"] == counts["ruler-8"] == 100
    assert (counts["ruler"], counts["aime-2026"], counts["hmmt-2026-feb"]) == (30, 30, 33)
    assert (counts["imo-answerbench"], counts["locomo"]) == (400, 1986)
    replays = {name: PRESETS[name].options.get("replays") for name in PRESETS}
    assert (replays["aime-2026"], replays["hmmt-2026-feb"], replays["imo-answerbench"]) == (31, 31, 3)


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="no preset 'best'; choose among longbench-qa, longbench-summaries"):
        preset("best")
    needs = Preset("", {}, {"json": "'json'", "surely_missing": "'some[extra]'", "missing_too": "'some[extra]'"})
    monkeypatch.setitem(PRESETS, "needy", needs)  # type: ignore[arg-type]
    message = r"preset needy needs surely_missing, missing_too, not installed here: pip install 'some\[extra\]'$"
    with pytest.raises(ConfigError, match=message):
        preset("needy")
    assert "locomo needs a file of its problems" in error_line(invoke("eval", "nowhere", "--preset", "locomo").stderr)


def test_options_that_are_given_win(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch)
    model = tiny.save(tmp_path / "model")
    facts = tmp_path / "facts.json"
    ways = ["--preset", "squad", "--limit", "2", "--arms", "dense,int8", "--threads", "1", "--json", str(facts)]
    done = invoke("eval", str(model), *ways)
    assert done.exit_code == 0, done.stderr
    rows = json.loads(facts.read_text())["rows"]
    assert [(row["task"], row["metric"], row["arm"], row["count"]) for row in rows] == [
        ("squad", "f1", "dense", 2),
        ("squad", "f1", "int8", 2),
    ]
    assert "long_context_eval" not in sys.modules, "the package's code is not run"
