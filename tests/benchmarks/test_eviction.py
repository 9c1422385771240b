"""The comparison of orders of eviction on a trace of block hashes: one simulation of each kind, and what is kept."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import eviction


def written(path: Path) -> Path:
    """Two conversations of two turns behind one system prompt, and a request of one turn."""
    rows = [
        (5000, 300, [0, *range(1, 10)]),
        (3000, 300, [0, *range(20, 25)]),
        (6000, 300, [0, *range(1, 9), *range(30, 33)]),
        (900, 10, [0, 40]),
        (4000, 300, [0, *range(20, 24), *range(50, 53)]),
    ]
    lines = [{"input_length": prompt, "output_length": reply, "hash_ids": ids} for prompt, reply, ids in rows]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def run(monkeypatch: pytest.MonkeyPatch, *flags: object) -> None:
    monkeypatch.setattr(sys, "argv", ["eviction", *map(str, flags)])
    assert eviction.main() == 0


def test_orders_and_kinds_are_counted_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace, out = written(tmp_path / "trace.jsonl"), tmp_path / "eviction.json"
    flags = (trace, "--quick", "--first", "0", "--clients", "1", "--running", "1", "--threads", "1", "--out", out)
    run(monkeypatch, *flags)
    found: dict[str, Any] = json.loads(out.read_text())
    kinds = {row["kind"]: row for row in found["kinds"]}
    # each conversation's second turn resumes where the reply before it ended
    assert (kinds["end of a request"]["taken"], kinds["end of a request"]["hits"]) == (5, 2)
    # the second request shows what all share, and so the third may find it
    assert kinds["where prompts part"]["hits"] == 1
    assert kinds["all"]["hits"] == 3
    wanted = (5299 + 3299 + 512) / (5000 + 3000 + 6000 + 900 + 4000)
    assert kinds["all"]["hit"] == pytest.approx(wanted)
    assert [row["eviction"] for row in found["rows"]] == ["lru", "cost", "coverage"]
    assert all(row["hit"] == pytest.approx(wanted, abs=0.01) for row in found["rows"])
    # the second turns come after one other request, and after two
    assert found["windows"]["0"]["between_turns"]["value"] == pytest.approx(1.5)
    assert found["windows"]["0"]["prompt_tokens"] == pytest.approx(18900 / 5)
    monkeypatch.setattr(eviction, "simulate", None)
    run(monkeypatch, *flags, "--keep")
    again = json.loads(out.read_text())
    assert (again["rows"], again["kinds"]) == (found["rows"], found["kinds"])
    about = {name: found[name] for name in ("trace", "windows", "scale")}
    monkeypatch.setattr("benchmarks.common.commit", lambda: "another")
    assert eviction._kept(out, about) == ([], {})
