"""Runs the steps of a report as commands, several at a time, and goes on where an earlier call stopped."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from holdover import __version__
from holdover.errors import HoldoverError
from holdover.report.quality.suite import JSON, Step
from holdover.weights.digest import model_digest
from holdover.weights.source import resolve

# steps share the cores among them, so each computes with one thread
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
_SHOWN_LINES = 3


@dataclass(frozen=True)
class Job:
    """A step of one model.

    Attributes:
        model: the model's name, under which its results lie.
        step: what is run.
        root: the folder of all results; what is under way lies in ``work`` beside them.
        weights: identifies the model's weights.
    """

    model: str
    step: Step
    root: Path
    weights: str

    @property
    def result(self) -> Path:
        """The file that it makes."""
        return self.root / "results" / self.model / f"{self.step.name}.json"

    @property
    def work(self) -> Path:
        """The same while it is not whole."""
        return self.root / "work" / self.model / f"{self.step.name}.json"

    @property
    def is_done(self) -> bool:
        """Whether the same command has already run whole on the same weights and files, by the same versions."""
        return self.result.exists() and self._recorded() == self._identity()

    def run(self) -> str:
        """Run it; what went wrong, or nothing. An interrupted run of the same command is taken up."""
        self.work.parent.mkdir(parents=True, exist_ok=True)
        self.result.parent.mkdir(parents=True, exist_ok=True)
        if self._recorded() != self._identity():
            for path in (self.result, self.work, self.work.with_suffix(".answers.jsonl")):
                path.unlink(missing_ok=True)
            self.work.with_suffix(".command").write_text(self._identity(), encoding="utf-8")
        arguments = [str(self.work) if part == JSON else part for part in self.step.arguments]
        with self.work.with_suffix(".log").open("w", encoding="utf-8") as log:
            command = [sys.executable, "-m", "holdover", *arguments]
            if JSON in self.step.arguments:
                done = subprocess.run(command, env=os.environ | _ONE_THREAD, stdout=log, stderr=log, check=False)
            else:
                with self.work.open("w", encoding="utf-8") as out:
                    done = subprocess.run(command, env=os.environ | _ONE_THREAD, stdout=out, stderr=log, check=False)
        if done.returncode:
            return self._last_words()
        self.work.replace(self.result)
        return ""

    def _identity(self) -> str:
        # what protocols have finished is theirs to take up under the same versions only
        versions = {"holdover": __version__, "torch": version("torch")}
        facts = {"arguments": self.step.arguments, "files": self._files(), "weights": self.weights}
        return json.dumps(facts | versions) + "\n"

    def _files(self) -> dict[str, str]:
        """Digests of the files that the command is given, such as texts and problems."""
        given = (Path(part) for part in self.step.arguments)
        return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in given if path.is_file()}

    def _recorded(self) -> str:
        path = self.work.with_suffix(".command")
        return path.read_text(encoding="utf-8") if path.exists() else ""

    def _last_words(self) -> str:
        lines = self.work.with_suffix(".log").read_text(encoding="utf-8").splitlines()
        return " ".join(lines[-_SHOWN_LINES:]) or "it ended without a word"


def jobs_of(models: Sequence[str], root: Path, steps: Callable[[str], Sequence[Step]]) -> list[Job]:
    """Every step of every model, a model's steps in order.

    Args:
        models: as `holdover` takes them; their last part names them.
        root: where results go.
        steps: what is run on a model.

    Raises:
        HoldoverError: a model cannot be found.
    """
    return [
        Job(Path(model).name, step, root, weights)
        for model in models
        for weights in [model_digest(resolve(model))]
        for step in steps(model)
    ]


def run_all(jobs: Sequence[Job], parallel: int, tell: Callable[[str], None]) -> None:
    """Run what is not done, so many at a time.

    Raises:
        HoldoverError: steps failed; the others have run, and the next call starts with those that failed.
    """

    def run(job: Job) -> str:
        name = f"{job.model}/{job.step.name}"
        if job.is_done:
            tell(f"{name}: done before")
            return ""
        tell(f"{name}: started")
        wrong = job.run()
        tell(f"{name}: {wrong or 'done'}")
        return f"{name}: {wrong}" if wrong else ""

    with ThreadPoolExecutor(parallel) as pool:
        failed = list(filter(None, pool.map(run, jobs)))
    if failed:
        raise HoldoverError(f"{len(failed)} of {len(jobs)} runs failed: " + "; ".join(failed))
