import json
from pathlib import Path

import pytest

from holdover import Engine, SamplingParams
from tests.cli.run import error_line, invoke

PROMPT = "the cat sat"


@pytest.fixture(scope="module")
def engine(model: Path) -> Engine:
    return Engine.from_pretrained(str(model))


def generate(model: Path, *options: str) -> str:
    result = invoke("generate", PROMPT, "--model", str(model), "--max-tokens", "10", "--temperature", "0", *options)
    assert result.exit_code == 0, result.stderr
    out: str = result.stdout
    return out


@pytest.mark.parametrize("stream", ["--stream", "--no-stream"])
def test_text(model: Path, engine: Engine, stream: str) -> None:
    params = SamplingParams(max_tokens=10, temperature=0)
    chat = engine.chat([{"role": "user", "content": PROMPT}], params).text
    assert generate(model, stream) == generate(model, stream, "--chat") == chat + "\n"
    assert generate(model, stream, "--no-chat") == engine.generate(PROMPT, params).text + "\n"


def test_seed(model: Path) -> None:
    drawn = [generate(model, "--temperature", "1.5", "--seed", seed) for seed in ("1", "1", "2", "3")]
    assert drawn[0] == drawn[1]
    assert len(set(drawn)) > 1


def test_show_cache(model: Path) -> None:
    result = invoke("generate", PROMPT, "--model", str(model), "--max-tokens", "2", "--show-cache")
    report = json.loads(result.stderr.splitlines()[-1])
    assert report["state_depth"] == 0
    assert report["reason"].startswith("miss: ")


def test_stdin(model: Path) -> None:
    result = invoke("generate", "-", "--model", str(model), "--max-tokens", "10", "--temperature", "0", data=PROMPT)
    assert result.stdout == generate(model)


def test_stdin_that_is_no_text() -> None:
    result = invoke("generate", "-", data=b"ab\xffcd")
    assert result.exit_code == 2
    assert "not valid UTF-8" in error_line(result.stderr)
    assert "byte 2" in error_line(result.stderr)


def test_arguments_that_are_no_text(model: Path) -> None:
    # undecodable bytes of an argument arrive as lone surrogates
    result = invoke("generate", "a\udcffb", "--model", str(model))
    assert result.exit_code == 2
    assert "not valid Unicode" in error_line(result.stderr)


def test_refused_parameters(model: Path) -> None:
    result = invoke("generate", PROMPT, "--model", str(model), "--max-tokens", "0")
    assert result.exit_code == 2
    assert "--max-tokens" in result.stderr


def test_default_model() -> None:
    result = invoke("generate", "Hello", "--max-tokens", "4")
    assert (result.exit_code, result.stdout.endswith("\n")) == (0, True), result.stderr
