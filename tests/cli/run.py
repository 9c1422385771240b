"""The command line as users start it, in a process of its own, and in this one where that is enough."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

from typer.testing import CliRunner

from holdover.cli.main import app
from tests.project.paths import ROOT

COMMAND = [sys.executable, "-m", "holdover"]


def environment() -> dict[str, str]:
    """Without a network, and without what this process was told about debugging."""
    return {name: value for name, value in os.environ.items() if name != "HOLDOVER_DEBUG"} | {
        "PYTHONPATH": str(ROOT),
        "HF_HUB_OFFLINE": "1",
        "COLUMNS": "80",
    }


def process(*arguments: str, data: bytes | None = None, **env: str) -> subprocess.CompletedProcess[bytes]:
    """Run to the end."""
    return subprocess.run([*COMMAND, *arguments], input=data, env=environment() | env, capture_output=True, check=False)


def invoke(*arguments: str, data: bytes | str | None = None, **env: str | None) -> Any:
    """Run in this process."""
    return CliRunner().invoke(
        app, list(arguments), input=data, env={"HF_HUB_OFFLINE": "1", "HOLDOVER_DEBUG": None, **env}
    )


def until_ready(running: subprocess.Popen[str]) -> list[str]:
    """What a server that has just been started prints until it serves."""
    lines = []
    for line in running.stdout:
        lines.append(line.rstrip("\n"))
        if line.startswith("try "):
            return lines
    raise AssertionError(f"it ended: {lines} {'' if running.stderr is None else running.stderr.read()}")


def error_line(stderr: str) -> str:
    """The error that a command ended with, which must be one line and no traceback."""
    assert "Traceback" not in stderr
    lines = [line for line in stderr.splitlines() if line.startswith("error: ")]
    assert stderr.splitlines()[-1:] == lines, stderr
    return lines[0]
