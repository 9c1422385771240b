import subprocess
import sys

import pytest

from holdover import __version__
from holdover.errors import HoldoverError
from tests.cli.run import environment, error_line, invoke


def test_version() -> None:
    result = invoke("--version")
    assert (result.exit_code, result.stdout) == (0, f"holdover {__version__}\n")


@pytest.mark.parametrize("command", [(), ("serve",), ("generate",), ("inspect",)])
def test_help_loads_nothing_heavy(command: tuple[str, ...]) -> None:
    code = (
        "import sys\nfrom holdover.cli.main import app\n"
        "try: app(sys.argv[1:])\nexcept SystemExit as end: assert not end.code\n"
        "print(sys.modules.keys() & {'torch', 'transformers', 'fastapi', 'uvicorn', 'numpy', 'huggingface_hub'})"
    )
    arguments = [sys.executable, "-c", code, *command, "--help"]
    done = subprocess.run(arguments, env=environment(), capture_output=True, text=True, check=True)
    assert "Usage: " in done.stdout
    assert done.stdout.rstrip().endswith("set()")


@pytest.mark.parametrize(
    "arguments", [("nothing",), ("serve", "--nothing"), ("serve", "--port", "99999"), ("generate",)]
)
def test_usage_errors(arguments: tuple[str, ...]) -> None:
    assert invoke(*arguments).exit_code == 2


COMMANDS = [("serve", "{}", "--port", "0"), ("generate", "hi", "--model", "{}"), ("inspect", "{}")]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_unknown_model_is_one_line(command: tuple[str, ...], tmp_path: object) -> None:
    result = invoke(*(word.format(tmp_path) for word in command))
    assert result.exit_code == 2
    assert str(tmp_path) in error_line(result.stderr)


@pytest.mark.parametrize("command", COMMANDS[:2], ids=lambda command: command[0])
@pytest.mark.parametrize("way", ["before", "after", "environment"])
def test_debug_shows_the_traceback(command: tuple[str, ...], way: str, tmp_path: object) -> None:
    words = [word.format(tmp_path) for word in command]
    words = ["--debug", *words] if way == "before" else [*words, "--debug"] if way == "after" else words
    result = invoke(*words, HOLDOVER_DEBUG="1" if way == "environment" else None)
    assert isinstance(result.exception, HoldoverError)
