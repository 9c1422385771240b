"""An engine in a process of its own, which measures when it is asked to: a line of JSON asks, another answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TextIO

from benchmarks import common


class EngineProcess:
    """The side that asks. The process starts at once and is not waited for before its first answer.

    Args:
        module: whose ``main`` ends in `answer`.
        arguments: of the module; what is no string travels as JSON.
        environment: variables beside this process's own.
    """

    def __init__(self, module: str, *arguments: object, environment: Mapping[str, str] | None = None) -> None:
        words = [argument if isinstance(argument, str) else json.dumps(argument) for argument in arguments]
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *words],
            cwd=common.ROOT,
            env=os.environ | dict(environment or {}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def ask(self, what: str, *arguments: object) -> Any:
        """What the process measured.

        Raises:
            RuntimeError: it ended; its own messages say why.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps([what, *arguments]), file=self._process.stdin, flush=True)
        if line := self._process.stdout.readline():
            return json.loads(line)
        raise RuntimeError("the engine ended before it answered")

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        # one that ended already cannot take what was said last
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()


def answers_alone() -> TextIO:
    """Standard output, for answers; what libraries print there goes to standard error from now on."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return answers


def answer(answers: TextIO, measures: Mapping[str, Callable[..., Any]]) -> None:
    """The side that is asked: until standard input ends."""
    for line in sys.stdin:
        what, *arguments = json.loads(line)
        print(json.dumps(measures[what](*arguments)), file=answers)
