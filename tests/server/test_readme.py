"""README's blocks and the examples that need a server, run against one."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.project.paths import ROOT
from tests.project.readme import block, console_lines
from tests.server.live import Live, running

PUBLISHED = "http://127.0.0.1:8000"


def test_curl(server: Live) -> None:
    (line,) = console_lines("curl")
    assert PUBLISHED in line
    done = subprocess.run(
        ["bash", "-c", f"{line.replace(PUBLISHED, server.url)} -fsS"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert '"chat.completion"' in done.stdout


def run(code: str, server: Live) -> str:
    """Run Python that talks to the published address, on this server; what it printed."""
    assert PUBLISHED in code
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code.replace(PUBLISHED, server.url)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_client(server: Live) -> None:
    printed = run(block("python", "client").code, server)
    assert "prompt tokens came from the cache" in printed
    assert "miss: " in printed


@pytest.fixture(scope="module")
def bundled() -> Iterator[Live]:
    with running(Path("tiny-gdn"), state_budget=2**26, kv_budget=2**26) as live:
        yield live


def test_tools(bundled: Live) -> None:
    printed = run(block("python", "tools").code, bundled)
    assert re.fullmatch(r"rain \{'city': '(Oslo|Paris)', 'tomorrow': (True|False)\}\n", printed)


def test_schema(bundled: Live) -> None:
    printed = run(block("python", "schema").code, bundled)
    assert re.fullmatch(r"Animal\(name='(cat|dog)', legs=[24], tame=(True|False)\)\n", printed)


def test_chunks(bundled: Live) -> None:
    printed = run(block("python", "chunks").code, bundled)
    counts = re.match(r"(\d+) of (\d+) prompt tokens were reused\ncomposed: \1 of \2 tokens taken from chunks", printed)
    assert counts is not None, printed
    assert int(counts[1]) > int(counts[2]) // 2


def clients() -> list[Path]:
    return [path for path in sorted((ROOT / "examples").glob("*.py")) if "base_url" in path.read_text("utf-8")]


@pytest.mark.parametrize("example", clients(), ids=lambda path: path.name)
def test_examples(example: Path, server: Live) -> None:
    assert "hit: " in run(example.read_text("utf-8"), server)
