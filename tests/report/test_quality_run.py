"""Runs of a report: each once, taken up where it stopped, and said by name when it fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdover import __version__
from holdover.errors import ConfigError, HoldoverError
from holdover.report.quality.run import Job, run_all
from holdover.report.quality.suite import JSON, SIZES, Step, size_named, steps
from tests.cli.run import error_line, invoke

# the quickest command there is; its standard output becomes the file
QUICK = Step("version", ("--version",))


def job(root: Path, step: Step = QUICK, weights: str = "feed") -> Job:
    return Job("small", step, root, weights)


def told(jobs: list[Job]) -> list[str]:
    said: list[str] = []
    run_all(jobs, 2, said.append)
    return said


def test_a_step_is_run_once_for_a_command_and_weights(tmp_path: Path) -> None:
    first = job(tmp_path)
    assert told([first]) == ["small/version: started", "small/version: done"]
    assert first.result.read_text().strip() == f"holdover {__version__}"
    assert told([first]) == ["small/version: done before"]
    assert told([job(tmp_path, weights="beef")])[-1] == "small/version: done"
    assert told([job(tmp_path, Step("version", ("--help",)), "beef")])[-1] == "small/version: done"
    assert "Usage" in first.result.read_text()


def test_a_step_is_run_again_when_a_file_that_it_is_given_changes(tmp_path: Path) -> None:
    text = tmp_path / "held_out.txt"
    text.write_text("one", encoding="utf-8")
    step = Step("version", ("--version", str(text)))
    assert told([job(tmp_path, step)])[-1] == "small/version: done"
    assert told([job(tmp_path, step)]) == ["small/version: done before"]
    text.write_text("two", encoding="utf-8")
    assert told([job(tmp_path, step)])[-1] == "small/version: done"


def test_a_result_exists_only_whole(tmp_path: Path) -> None:
    wrong = job(tmp_path, Step("wrong", ("eval", "nowhere", "--json", JSON)))
    other = job(tmp_path)
    with pytest.raises(HoldoverError, match=r"1 of 2 runs failed: small/wrong: .*--tasks") as caught:
        told([wrong, other])
    assert "small/version" not in str(caught.value)
    assert not wrong.result.exists()
    assert other.result.exists(), "one failure stops no other step"


def test_unfinished_work_stays_for_the_same_command_only(tmp_path: Path) -> None:
    step = Step("wrong", ("eval", "nowhere", "--json", JSON))
    first = job(tmp_path, step)
    journal = first.work.with_suffix(".answers.jsonl")
    for weights, kept in (("feed", False), ("feed", True), ("beef", False)):
        with pytest.raises(HoldoverError):
            told([job(tmp_path, step, weights)])
        assert journal.exists() is kept
        journal.write_text("finished work")


@pytest.mark.parametrize("size", SIZES)
def test_every_step_is_a_command_line_that_is_understood(size: str, tmp_path: Path) -> None:
    text, problems = tmp_path / "text.txt", tmp_path / "problems.jsonl"
    found = steps("nowhere", size_named(size), text, problems)
    names = [step.name for step in found]
    assert names == ["inspect", "validate", "replay-text", "replay-tasks", "composed", "deferred", "combinations"]
    for step in found:
        # every option is read before the model is looked for, or the text
        done = invoke(*(str(tmp_path / "x.json") if part == JSON else part for part in step.arguments))
        assert done.exit_code == 2
        assert "nowhere" in error_line(done.stderr) or "text.txt" in error_line(done.stderr), done.stderr
    assert "replay-tasks" not in [step.name for step in steps("nowhere", size_named(size), text, None)]


def test_a_size_that_there_is_none_of() -> None:
    with pytest.raises(ConfigError, match="no size 'huge'; choose among quick, full"):
        size_named("huge")


def test_a_model_that_there_is_none_of(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("something")
    done = invoke("report", "run", "nowhere", "--text", str(text), "--out", str(tmp_path / "out"))
    assert done.exit_code == 2
    assert "nowhere" in error_line(done.stderr)
    assert not (tmp_path / "out").exists()
