"""What survives an interruption, and what is not taken over."""

import resource
from pathlib import Path

import pytest

from holdover.errors import ConfigError
from holdover.evaluation.journal import Journal

WHO = {"model": "a", "sizes": (1, 2)}


def test_entries_survive_a_line_that_was_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "work.jsonl"
    with Journal(path, WHO) as journal:
        journal.add({"x": {"score": 1.0}, "y": [1, 2]})
        journal.add({"z": None})
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"key": "w", "va')
    with Journal(path, WHO, resume=True) as journal:
        assert (len(journal), journal["x"], journal["y"], journal["z"]) == (3, {"score": 1.0}, [1, 2], None)
        assert "w" not in journal
        journal.add({"w": 4})
    assert path.read_bytes() == whole + b'{"key": "w", "value": 4}\n'


def test_a_file_that_was_cut_off_at_once_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "work.jsonl"
    path.write_bytes(b'{"identity": {"mo')
    with Journal(path, WHO, resume=True) as journal:
        journal.add({"x": 1})
    with Journal(path, WHO, resume=True) as journal:
        assert journal["x"] == 1


def test_refusals(tmp_path: Path) -> None:
    path = tmp_path / "work.jsonl"
    with Journal(path, WHO) as journal:
        journal.add({"x": 1})
    with pytest.raises(ConfigError, match="exists: go on with it by --resume"):
        Journal(path, WHO)
    with pytest.raises(ConfigError, match="another evaluation \\(model was 'a' and is 'b'\\)"):
        Journal(path, WHO | {"model": "b"}, resume=True)
    path.write_text("[1]\n")
    with pytest.raises(ConfigError, match="no record of an evaluation"):
        Journal(path, WHO, resume=True)
    with pytest.raises(ConfigError, match="cannot be used"):
        Journal(tmp_path / "missing" / "work.jsonl", WHO)


def test_without_a_file_entries_are_kept_in_memory() -> None:
    with Journal(None, WHO) as journal:
        journal.add({"x": 1})
        assert journal["x"] == 1


def test_a_run_that_finished_nothing_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "work.jsonl"
    with pytest.raises(ZeroDivisionError), Journal(path, WHO):
        _ = 1 / 0
    assert not path.exists()


def test_what_does_not_fit_on_the_disk_is_said_and_left_out(tmp_path: Path) -> None:
    path = tmp_path / "work.jsonl"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Journal(path, WHO) as journal:
        journal.add({"a": 1})
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 10, limits[1]))
        try:
            with pytest.raises(ConfigError, match=r"cannot be written: .*; make room and go on by --resume"):
                journal.add({"b": 2})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    with Journal(path, WHO, resume=True) as journal:
        assert ("a" in journal, "b" in journal) == (True, False)
        journal.add({"b": 3})
    with Journal(path, WHO, resume=True) as journal:
        assert journal["b"] == 3
