"""What an operator says of chunks, and where it arrives."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import pytest

from holdover.chunks import INITIALISERS, ChunkOptions
from holdover.chunks.selectors import SELECTORS
from holdover.cli import composing
from holdover.cli.composing import Composing, ExtraName
from holdover.cli.loading import load_engine
from holdover.engine.chunks.request import SEAMS, Window
from holdover.engine.chunks.settings import DEFAULT_SETTINGS, ChunkSettings
from holdover.errors import ConfigError
from tests.cli.run import invoke
from tests.cli.test_settings import shown


def test_names_are_the_engine_s() -> None:
    assert {*get_args(composing.SelectorName)} == {*SELECTORS}
    assert {*get_args(composing.InitialiserName)} == {*INITIALISERS, SEAMS}
    assert {*get_args(composing.WindowName)} == {*get_args(Window)}
    assert {*ExtraName} == {field.name for field in fields(ChunkOptions)}


def test_defaults_are_the_engine_s() -> None:
    assert Composing().settings() == DEFAULT_SETTINGS
    found = shown()
    for field in fields(Composing):
        name = "chunks" if field.name == "mode" else f"chunk-{field.name.replace('_', '-')}"
        if field.default not in (None, ()):
            assert found[name] == (field.default, "default")


def test_from_the_flags_to_the_engine(model: Path) -> None:
    said = Composing("on", "seam", "exact", 0.5, "context", 32, 100, (ExtraName.TRANSITIONS, ExtraName.INPUTS), "2MiB")
    with load_engine(str(model), state_budget="1MiB", kv_budget="2MiB", threads=1, composing=said) as engine:
        assert engine.options.chunks == ChunkSettings(
            selector="seam",
            initialiser="exact",
            ratio=0.5,
            window="context",
            tokens=32,
            rows=100,
            extras=ChunkOptions(transitions=True, inputs=True),
            extra_bytes=2 << 20,
        )
        assert (engine.core.chunks.store.max_rows, engine.core.chunks.store.max_extra_bytes) == (100, 2 << 20)
        assert [len(chunk.tokens) for chunk in engine.prepare.chunks([1] * 70)] == [32, 32, 6]


def test_extras_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text('chunk-extras = ["transitions", "bodies"]\nchunk-ratio = 0.5\n')
    found = shown("--config", str(file), "--chunk-ratio", "0.25")
    assert found["chunk-extras"] == (["transitions", "bodies"], "file")
    assert found["chunk-ratio"] == (0.25, "flag")


@pytest.mark.parametrize(
    "options",
    [
        ("--chunks", "never"),
        ("--chunk-selector", "best"),
        ("--chunk-initialiser", "first"),
        ("--chunk-window", "none"),
        ("--chunk-ratio", "2"),
        ("--chunk-tokens", "0"),
        ("--chunk-rows", "0"),
        ("--chunk-extras", "all"),
    ],
)
def test_out_of_range(options: tuple[str, str]) -> None:
    result = invoke("serve", "/no/such/model", *options)
    assert result.exit_code == 2
    assert options[0] in result.stderr


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"initialiser": "exact"}, "kept with transitions"),
        ({"initialiser": "seams", "extras": (ExtraName.TRANSITIONS,)}, "kept with bodies"),
        ({"initialiser": "seams", "extras": (ExtraName.BODIES,), "window": "context"}, "window must be stream"),
        ({"extra_bytes": "many"}, "is no size"),
    ],
)
def test_what_cannot_be_is_said_before_loading(said: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Composing(**said).settings()
