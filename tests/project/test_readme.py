"""What README and CONTRIBUTING say can be done: the Python lines run as written, the commands and files exist."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.project.paths import ROOT
from tests.project.readme import Block, block, blocks, commands, console_lines, links

# blocks that talk to a running server; the server's own tests run them
CLIENTS = {"chunks", "client", "schema", "tools"}
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]


def python_blocks() -> list[Block]:
    return [one for one in blocks("python") if one.label not in CLIENTS]


def run(code: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run Python from another folder, on the code of this checkout."""
    env = os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    return subprocess.run([sys.executable, *code], cwd=folder, env=env, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("one", python_blocks(), ids=lambda one: one.label or f"line{one.line}")
def test_python_runs_as_written(one: Block, tmp_path: Path) -> None:
    done = run(["-c", one.code], tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip(), "it printed nothing"


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_examples_run(example: Path, tmp_path: Path) -> None:
    compile(example.read_text(encoding="utf-8"), str(example), "exec")
    if "base_url" in example.read_text(encoding="utf-8"):
        return  # needs a server, as the blocks in CLIENTS do
    done = run([str(example)], tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip(), "it printed nothing"


def test_blocks_that_others_run_are_there() -> None:
    compile(block("python", "client").code, "README.md", "exec")
    assert "import Engine" in block("python", "quickstart").code
    assert [line.split()[0] for line in console_lines("curl")] == ["curl"]
    assert {line.partition("#")[0].strip() for line in console_lines("start")} == {"make serve", "make test"}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_make_targets_exist(path: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    used = commands("make", path=path)
    assert used
    for words in used:
        wanted = {word for word in words[1:] if "=" not in word}
        assert wanted <= targets, f"{' '.join(words)}: no such target"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_holdover_commands_exist(path: Path) -> None:
    serve = [["holdover", "serve", *arguments(words)] for words in commands("make", path=path) if "serve" in words]
    for words in commands("holdover", path=path) + serve:
        options = {word.partition("=")[0] for word in words if word.startswith("--")}
        called = words[1] if not words[1].startswith("-") else None
        assert options <= known_options(called), f"{' '.join(words)}: no such option"


def arguments(words: list[str]) -> list[str]:
    """What ``make TARGET ARGS="..."`` hands to the program."""
    return [part for word in words if word.startswith("ARGS=") for part in word.removeprefix("ARGS=").split()]


def known_options(command: str | None) -> set[str]:
    """The options of one command of the program, or its own."""
    import typer

    from holdover.cli.main import app

    root = typer.main.get_command(app)
    known = getattr(root, "commands", {})
    assert command is None or command in known, f"holdover {command}: no such command"
    target = known[command] if command else root
    return {"--help"} | {name for param in target.params for name in (*param.opts, *param.secondary_opts)}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    missing = [target for target in links(path) if not (path.parent / target).exists()]
    assert not missing


def test_extraction(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "Use `make serve ARGS=\"--port 1\"` or `make`.\n```python one\nprint('`make no`')\n```\n"
        "```console\n# why\n$ make test  # all\ncurl a \\\n  b\n```\n[a](b.md#c) [d](https://e)\n"
    )
    assert block("python", "one", path=page) == Block("python", "one", "print('`make no`')\n", 2)
    assert console_lines(path=page) == ["make test  # all", "curl a b"]
    assert commands("make", path=page) == [["make", "test"], ["make", "serve", "ARGS=--port 1"]]
    assert links(page) == ["b.md"]
    with pytest.raises(LookupError, match="0 blocks"):
        block("python", "two", path=page)
