"""The gate of chunk reuse: its file, and what it lets an engine do."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from holdover.chunks import Chunk, ChunkOptions
from holdover.engine.chunks.gate import (
    GATE_NAME,
    ChunkGate,
    ChunkPoint,
    extras_for,
    gate_chunks,
    read_gate,
    user_gate,
    write_gate,
)
from holdover.engine.chunks.settings import ChunkSettings
from holdover.engine.engine import Engine
from holdover.engine.hf.loader import Loaded
from holdover.engine.options import EngineOptions
from holdover.engine.sampling import SamplingParams
from holdover.errors import GateError, RequestError
from holdover.retention.plan_file import BESIDE
from tests.engine.harness import assert_greedy, budgets, host_of, loaded_of, prompt_of

POINT = ChunkPoint("prophetkv", "exact", 0.1, "context", 0.1, 0.01, 0.005, 0.02, 0.04, 0.02, 100.0, 5.0)
OTHER = replace(POINT, selector="epic", p95_kl=0.5)
SETTINGS = ChunkSettings(rows=10, ratio=0.3, extras=ChunkOptions(bodies=True))


class Files:
    """A place for a model's files."""

    def __init__(self, path: Path) -> None:
        self.path = path


@pytest.fixture
def loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Loaded:
    monkeypatch.setenv("HOLDOVER_PLANS", str(tmp_path / "user"))
    (tmp_path / "model").mkdir()
    return replace(loaded_of("qwen3_5"), files=Files(tmp_path / "model"))  # type: ignore[arg-type]


def gate_for(loaded: Loaded, **fields) -> ChunkGate:
    found = {
        "model_digest": loaded.model_digest,
        "dtype": "float32",
        "text_digest": "b" * 64,
        "budget": 0.05,
        "contexts": 50,
        "chunks": 4,
        "tokens": 128,
        "query": 16,
        "following": 64,
        "full_ms": 12.0,
        "versions": {"holdover": "0", "torch": "0"},
        "chosen": POINT,
        "sweep": (OTHER, POINT),
    }
    return ChunkGate(**(found | fields))


def test_what_is_written_is_read(loaded: Loaded, tmp_path: Path) -> None:
    gate, path = gate_for(loaded), tmp_path / "new" / GATE_NAME
    write_gate(gate, path)
    assert read_gate(path) == gate
    assert [one.name for one in path.parent.iterdir()] == [GATE_NAME]


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda whole: whole["gate"].update(budget=1.0), "damaged or was edited"),
        (lambda whole: whole["gate"]["chosen"].update(p95_kl=0.0), "damaged or was edited"),
        (lambda whole: whole["gate"].pop("dtype"), "damaged or was edited"),
        (lambda whole: whole.pop("checksum"), "damaged or was edited"),
        (lambda whole: whole.update(gate=None), "damaged or was edited"),
        (lambda whole: whole.update(version=2), "has version 2 and this Holdover reads 1"),
        (lambda whole: whole.update(format="plan"), "is no gate of chunk reuse"),
    ],
)
def test_what_was_edited_is_refused(loaded: Loaded, tmp_path: Path, edit, message: str) -> None:
    path = tmp_path / GATE_NAME
    write_gate(gate_for(loaded), path)
    whole = json.loads(path.read_text())
    edit(whole)
    path.write_text(json.dumps(whole))
    with pytest.raises(GateError, match=message):
        read_gate(path)


@pytest.mark.parametrize(("content", "message"), [("{", "damaged"), ("[]", "no gate"), ("", "damaged")])
def test_what_is_something_else_is_refused(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / GATE_NAME
    path.write_text(content)
    with pytest.raises(GateError, match=message):
        read_gate(path)
    with pytest.raises(GateError, match="cannot be read"):
        read_gate(tmp_path / "nowhere")


def test_a_place_that_cannot_be_written(loaded: Loaded, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(GateError, match=r"cannot be written .*choose another file with -o"):
        write_gate(gate_for(loaded), tmp_path / "file" / GATE_NAME)


@pytest.mark.parametrize("is_beside", [True, False])
def test_a_passed_gate_says_how_prompts_are_composed(loaded: Loaded, is_beside: bool) -> None:
    assert loaded.files is not None
    path = loaded.files.path / BESIDE / GATE_NAME if is_beside else user_gate(loaded.model_digest)
    write_gate(gate_for(loaded), path)
    found = gate_chunks(loaded, SETTINGS, "auto")
    assert found.settings == replace(
        SETTINGS,
        tokens=128,
        selector="prophetkv",
        initialiser="exact",
        ratio=0.1,
        window="context",
        # what was kept already stays
        extras=ChunkOptions(transitions=True, bodies=True, inputs=True),
    )
    assert str(path) in found.note
    assert "0.02 P95" not in found.note
    assert "0.04 P95, budget 0.05" in found.note
    assert found.warnings == ()


@pytest.mark.parametrize(
    ("fields", "doubt"),
    [
        ({"model_digest": "a" * 64}, "measured on other weights"),
        ({"budget": 0.01}, "P95 KL 0.04 is above its budget of 0.01"),
    ],
)
def test_without_one_prompts_are_prefilled_in_full(loaded: Loaded, fields: dict, doubt: str) -> None:
    assert loaded.files is not None
    path = loaded.files.path / BESIDE / GATE_NAME
    none = gate_chunks(loaded, SETTINGS, "auto")
    assert none.settings == replace(SETTINGS, use="full", why=none.settings.why)
    assert "no gate passed for these weights" in none.settings.why
    write_gate(gate_for(loaded, **fields), path)
    found = gate_chunks(loaded, SETTINGS, "auto")
    assert found.settings == none.settings
    (warning,) = found.warnings
    assert warning.startswith(f"{path} was passed over: ")
    assert doubt in warning
    # the next place is looked at all the same
    write_gate(gate_for(loaded), user_gate(loaded.model_digest))
    assert gate_chunks(loaded, SETTINGS, "auto").settings.use == "compose"


def test_operators_decide(loaded: Loaded) -> None:
    assert gate_chunks(loaded, SETTINGS, "on").settings == SETTINGS
    assert gate_chunks(loaded, SETTINGS, "off").settings == replace(SETTINGS, use="refuse")
    assert gate_chunks(replace(loaded, files=None), SETTINGS, "auto").settings.use == "full"


def test_extras() -> None:
    assert extras_for(["last", "zero"]) == ChunkOptions()
    assert extras_for(["exact", "seams"], ["stream"]) == ChunkOptions(transitions=True, bodies=True)
    assert extras_for(["last"], ["stream", "context"]) == ChunkOptions(inputs=True)


def engine_of(**settings) -> Engine:
    sizes = budgets(host_of("small-qwen3_5").layout, 8, 200)
    return Engine(loaded_of("small-qwen3_5"), EngineOptions(**sizes, poison=True, chunks=ChunkSettings(**settings)))


def test_where_none_passed_all_is_run_whatever_a_request_says() -> None:
    engine = engine_of(use="full", why="no gate passed")
    context, params = [Chunk(prompt_of(9)), Chunk(prompt_of(7, seed=1))], SamplingParams(max_tokens=4)
    output = engine.generate(context=context, query=[1], params=params, selector="none")
    assert_greedy("small-qwen3_5", output, logprobs=False)
    assert (output.cache.reused, output.cache.recomputed, output.cache.new) == (0, 16, 1)
    assert output.cache.lineage is None
    assert output.cache.reason.endswith("; chunks were prefilled as part of the prompt: no gate passed")
    plain = engine.generate([prompt_of(3)], params)[0]
    assert "chunks" not in plain.cache.reason


def test_where_chunks_are_off_they_are_refused() -> None:
    engine = engine_of(use="refuse")
    with pytest.raises(RequestError, match="this server composes no prompts of chunks"):
        engine.generate(context=[Chunk(prompt_of(9))], query=[1], params=SamplingParams(max_tokens=4))
    assert not engine.core.has_work
