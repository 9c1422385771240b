"""RULER's questions from files that are here are the harness's own from the network, where lm-eval is installed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.evaluation.passage_files import HOTPOTQA, SQUAD, install
from tests.server import tiny

pytest.importorskip("lm_eval")

from lm_eval.tasks.ruler import qa_utils

from holdover.evaluation.harness import questions
from holdover.evaluation.harness.tasks import Tasks

# the harness generates so many prompts
PROMPTS = 500


@pytest.mark.parametrize(
    ("ours", "theirs", "data"),
    [
        (questions.squad_questions, qa_utils.read_squad, SQUAD),
        (questions.hotpotqa_questions, qa_utils.read_hotpotqa, HOTPOTQA),
    ],
)
def test_files_are_read_as_the_harness_reads_them(
    ours: Any, theirs: Any, data: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(qa_utils, "download_json", lambda url: data)
    # what it has read from the network in this process is kept
    assert ours(data) == theirs.__wrapped__()


def test_prompts_are_generated_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = install(tmp_path, monkeypatch)
    many = SQUAD | {"data": SQUAD["data"] * (PROMPTS // 12 + 1)}
    (folder / "squad.json").write_text(json.dumps(many))
    model = tiny.save(tmp_path / "model")
    task = Tasks(model).load(["ruler_qa_squad"], 1024)["tasks"]["ruler_qa_squad"]
    rows = list(task.test_docs())
    assert len(rows) == PROMPTS
    assert rows[0]["outputs"] == ["a cat", "a cat", "cat"]
    for row in rows:
        assert f"\n{row['input'].split()[-1].join(('text ', ''))}\n" in row["input"]
        assert row["max_length"] == 1024
