"""Settings of a server: one precedence, shown with where each came from, and a file that is misspelt is an error."""

import tomllib
from pathlib import Path

import pytest

from tests.cli.run import error_line, invoke

# the newest source that sets it wins
SOURCES = ["default", "file", "environment", "flag"]


def shown(*arguments: str, **env: str | None) -> dict[str, tuple[object, str]]:
    """Every setting with its source."""
    result = invoke("serve", *arguments, "--print-config", **env)
    assert result.exit_code == 0, result.stderr
    values = tomllib.loads(result.stdout)
    sources = {line.split(" = ")[0]: line.rsplit("# ", 1)[1] for line in result.stdout.splitlines() if " = " in line}
    return {name: (value, sources[name]) for name, value in values.items()}


@pytest.mark.parametrize("level", range(4))
def test_precedence(tmp_path: Path, level: int) -> None:
    file = tmp_path / "settings.toml"
    file.write_text("max-running = 21\nport = 1021\n" if level >= 1 else "")
    env = {"HOLDOVER_MAX_RUNNING": "22"} if level >= 2 else {}
    flags = ("--max-running", "23") if level >= 3 else ()
    found = shown("--config", str(file), *flags, **env)
    assert found["max-running"] == ([16, 21, 22, 23][level], SOURCES[level])
    assert found["port"] == ((1021, "file") if level else (8000, "default"))


def test_every_kind_of_value(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text(
        'model = "mine"\ndense-spill = false\nshadow_check = 0.5\nspill-dir = "a b"\nstate-budget = 1048576\n'
        'log-format = "json"\napi-key = ["sk-s3cret", "sk-0ther"]\n'
    )
    result = invoke("serve", "--print-config", HOLDOVER_CONFIG=str(file))
    assert "s3cret" not in result.stdout
    assert "# api-key: 2 given, not shown  # file" in result.stdout
    found = shown(HOLDOVER_CONFIG=str(file))
    wanted = {
        "model": "mine",
        "dense-spill": False,
        "shadow-check": 0.5,
        "spill-dir": "a b",
        "state-budget": "1048576",
        "log-format": "json",
    }
    assert {name: found[name] for name in wanted} == {name: (value, "file") for name, value in wanted.items()}


def test_what_is_printed_can_be_given_back(tmp_path: Path) -> None:
    words = ("--served-name", 'it\'s "mine"\\', "--no-cuda-graphs", "--spill-lag", "3", "--grace", "1.5")
    first = invoke("serve", *words, "--print-config").stdout
    file = tmp_path / "settings.toml"
    file.write_text(first)
    again = shown("--config", str(file))
    assert {name: value for name, (value, _) in again.items()} == tomllib.loads(first)
    assert {source for _, source in again.values()} == {"file"}


def test_environment(tmp_path: Path) -> None:
    found = shown(HOLDOVER_MODEL="mine", HOLDOVER_DENSE_SPILL="false", HOLDOVER_GRACE="3")
    assert found["model"] == ("mine", "environment")
    assert found["dense-spill"] == (False, "environment")
    assert found["grace"] == (3.0, "environment")
    result = invoke("serve", "--print-config", HOLDOVER_API_KEY="one two", HOLDOVER_API_KEY_FILE="x")
    assert "# api-key: 2 given, not shown  # environment" in result.stdout


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ("max-runing = 3", ["unknown key 'max-runing'", "'max-running'"]),
        ("statebudget = 3", ["'state-budget'"]),
        ("config = 'x'", ["unknown key 'config'"]),
        ("[server]\nport = 3", ["unknown key 'server'"]),
        ("port = 'x'", ["port = 'x': ", "integer"]),
        ("port = 99999", ["port = 99999: ", "65535"]),
        ("port = 80.5", ["port = 80.5: ", "integer"]),
        ("port = true", ["port = True: ", "integer"]),
        ("dense-spill = 'maybe'", ["dense-spill = 'maybe': ", "boolean"]),
        ("decode = 'eager'", ["decode = 'eager': ", "deferred"]),
        ("port = {a = 1}", ["port = ", "no value of a flag"]),
        ("port = 1\nport = 2", ["cannot be read as TOML"]),
        ("port", ["cannot be read as TOML"]),
    ],
)
def test_files_that_cannot_be(tmp_path: Path, content: str, parts: list[str]) -> None:
    file = tmp_path / "settings.toml"
    file.write_text(content)
    result = invoke("serve", "/no/such/model", "--config", str(file))
    assert result.exit_code == 2
    line = error_line(result.stderr)
    assert all(part in line for part in [str(file), *parts]), line


def test_file_that_is_not_there() -> None:
    result = invoke("serve", "--config", "/no/such/file", "--print-config")
    assert result.exit_code == 2
    assert "/no/such/file" in error_line(result.stderr)
