"""WildChat's Parquet files: what is read, and what is said of files that are damaged or another's."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import pytest

from holdover.errors import ConfigError, HoldoverError
from holdover.evaluation.traces import Conversation, Turn
from holdover.evaluation.traces.sources import open_recordings
from holdover.evaluation.traces.wildchat import WildChatReader


def test_without_pyarrow_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ConfigError, match=r"holdover\[wildchat\]"):
        WildChatReader(tmp_path / "train.parquet")


def test_an_empty_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(HoldoverError, match=r"has no \.parquet files"):
        open_recordings(tmp_path)


def row(name: str | None, *texts: Any) -> dict[str, Any]:
    turns = [{"role": ("user", "assistant")[i % 2], "content": text, "toxic": False} for i, text in enumerate(texts)]
    return {"conversation_hash": name, "model": "m", "conversation": turns, "turn": len(texts) // 2}


def write(path: Path, rows: list[dict[str, Any]], group: int = 2) -> Path:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.Table.from_pylist(rows), path, row_group_size=group)
    return path


def test_conversations_come_in_order_and_others_are_counted(tmp_path: Path) -> None:
    write(tmp_path / "b.parquet", [row("three", "x", "y")])
    write(tmp_path / "a.parquet", [row("one", "q", "a"), row(None, "q", "a"), row("two", "q", None), row("four", "q")])
    reader = open_recordings(tmp_path)
    found = list(reader)
    assert found[0] == Conversation("one", (Turn("user", "q"), Turn("assistant", "a")))
    assert [one.id for one in found] == ["one", "four", "three"]
    assert (reader.skipped, reader.is_truncated) == (2, False)
    assert len(list(WildChatReader(tmp_path, limit=2))) == 2


def test_a_file_cut_off_at_its_end_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", [row("one", "q", "a")])
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(HoldoverError, match=r"a\.parquet cannot be read as Parquet \(is it whole\?\)"):
        open_recordings(path)


def test_damage_in_the_middle_costs_what_is_behind_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write(tmp_path / "a.parquet", [row(f"{i}", "q" * 50, f"a{i}" * 50) for i in range(600)], group=300)
    parquet = pytest.importorskip("pyarrow.parquet")
    start = parquet.ParquetFile(path).metadata.row_group(1).column(0).data_page_offset
    data = bytearray(path.read_bytes())
    data[start : start + 40] = bytes(40)
    path.write_bytes(data)
    reader = WildChatReader(path)
    with caplog.at_level(logging.WARNING):
        found = list(reader)
    assert reader.is_truncated
    assert [one.id for one in found] == [f"{i}" for i in range(len(found))]
    assert 0 < len(found) < 600
    assert f"damaged behind row {len(found)}" in caplog.text


def test_another_parquet_file_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", [{"text": "no conversation"}])
    with pytest.raises(HoldoverError, match="has no column 'conversation'"):
        open_recordings(path)
