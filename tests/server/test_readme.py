"""README's examples that need a server, run against one."""

import os
import subprocess
import sys

from tests.project.paths import ROOT
from tests.project.readme import block, console_lines
from tests.server.live import Live

PUBLISHED = "http://127.0.0.1:8000"


def test_curl(server: Live) -> None:
    (line,) = console_lines("curl")
    assert PUBLISHED in line
    done = subprocess.run(
        ["bash", "-c", f"{line.replace(PUBLISHED, server.url)} -fsS"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert '"chat.completion"' in done.stdout


def test_client(server: Live) -> None:
    code = block("python", "client").code
    assert PUBLISHED in code
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code.replace(PUBLISHED, server.url)],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "prompt tokens came from the cache" in done.stdout
    assert "miss: " in done.stdout
