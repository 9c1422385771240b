"""``holdover eval --tasks``, where lm-eval is installed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.run import error_line, invoke
from tests.server import tiny

pytest.importorskip("lm_eval")

TASK = """\
task: cats
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{answer}}}}"
doc_to_choice: "{{{{choices}}}}"
metric_list: [{{metric: acc}}]
"""


def test_a_task_from_end_to_end(tmp_path: Path) -> None:
    model, facts, data = tiny.save(tmp_path / "model"), tmp_path / "facts.json", tmp_path / "data.jsonl"
    rows = [{"question": f"the cat {i}", "answer": 0, "choices": ["sat", "dog"]} for i in range(3)]
    data.write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "cats.yaml").write_text(TASK.format(data=data))
    ways = ["--include", str(tmp_path / "tasks"), "--json", str(facts), "--threads", "1"]
    wrong = invoke("eval", str(model), "--tasks", "cats,niah_single_1", "--lengths", "512", *ways)
    assert "cannot be generated with 512 tokens" in error_line(wrong.stderr)
    # said before anything was loaded, or written
    assert "loading" not in wrong.stderr
    assert sorted(one.name for one in tmp_path.iterdir()) == ["data.jsonl", "model", "tasks"]
    done = invoke("eval", str(model), "--tasks", "cats", "--limit", "2", *ways)
    assert done.exit_code == 0, done.stderr
    first = json.loads(facts.read_text())
    assert [(row["task"], row["metric"], row["count"]) for row in first["rows"]] == [("cats", "acc", 2)]
    assert done.stdout.split()[:2] == ["task", "length"]
    work = facts.with_suffix(".answers.jsonl")
    kept = work.read_bytes()
    assert "go on with it by --resume" in error_line(invoke("eval", str(model), "--tasks", "cats", *ways).stderr)
    assert invoke("eval", str(model), "--tasks", "cats", "--limit", "2", *ways, "--resume").exit_code == 0
    assert (json.loads(facts.read_text()), work.read_bytes()) == (first, kept)
    assert "is no directory" in error_line(invoke("eval", str(model), "--tasks", "cats", "--include", "none").stderr)
