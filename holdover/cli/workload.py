"""What ``holdover bench serve`` sends: a frozen trace, or a recording that is frozen for the model that is served."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import typer

from holdover.cli import measuring
from holdover.cli.freezing import PRESET, SEEDS, freeze, preset_named
from holdover.errors import ConfigError

if TYPE_CHECKING:
    from holdover.evaluation.traces.build import Preset
    from holdover.evaluation.traces.trace import Trace


@dataclass(frozen=True)
class TraceFile:
    """A trace that is in a file.

    Attributes:
        path: the file.
        smaller: how to get one of shorter requests.
    """

    smaller: ClassVar[str] = "freeze a smaller trace"
    path: Path

    def trace(self, served: str) -> Trace:
        """Read it, whatever model is served.

        Raises:
            HoldoverError: it is no whole trace.
        """
        from holdover.evaluation.traces.trace import read_trace

        return read_trace(self.path)


@dataclass(frozen=True)
class Recording:
    """Conversations that are yet to be frozen.

    Attributes:
        preset: the scale.
        recording: where they are; None for those that come with Holdover.
        tokenizer: model whose tokenizer counts; None for the served one, which is a bundled one then.
        smaller: how to get shorter requests.
    """

    smaller: ClassVar[str] = "take a smaller --preset"
    preset: Preset
    recording: Path | None
    tokenizer: str | None

    def trace(self, served: str) -> Trace:
        """Freeze them.

        Args:
            served: what the model is called, by the server or the user.

        Raises:
            HoldoverError: the model has no tokenizer here, or the recording cannot be read or has nothing that fits.
        """
        from holdover.evaluation.traces.sources import BUNDLED

        model, folder = (served, _bundled(served)) if self.tokenizer is None else _named(self.tokenizer)
        seeds = tuple(measuring.numbers(SEEDS, "--seeds"))
        made = freeze(self.recording or BUNDLED, self.preset, model, folder, seeds)
        if made.shortage is not None:
            typer.echo(f"warning: {made.shortage}", err=True)
        return made.trace


def workload(
    trace: Path | None, preset: str | None, recording: Path | None, tokenizer: str | None
) -> TraceFile | Recording:
    """What the flags ask for; the bundled recording at the default scale if none is given.

    Raises:
        ConfigError: they contradict each other, or one of them would do nothing.
    """
    if trace is not None:
        given = {"--preset": preset, "--recording": recording, "--tokenizer": tokenizer}
        if useless := [flag for flag, value in given.items() if value is not None]:
            raise ConfigError(f"--trace is frozen already: pass either it or {' and '.join(useless)}")
        return TraceFile(trace)
    if recording is not None and preset is None:
        raise ConfigError("--recording needs the scale that it is frozen at: --preset small, tiny or paper")
    return Recording(preset_named(preset or PRESET), recording, tokenizer)


def _bundled(served: str) -> Path:
    from holdover.weights.bundled import bundled_path

    # the model may be called anything: a name is followed neither into this machine's directories nor to the hub
    folder = bundled_path(served)
    if folder is None:
        raise ConfigError(
            f"the model is called {served!r}, which is none that comes with Holdover: say whose tokenizer "
            "counts its prompts with --tokenizer MODEL (a bundled name, a directory or a hub id)"
        )
    return folder


def _named(model: str) -> tuple[str, Path]:
    from holdover.weights.source import tokenizer_folder

    return model, tokenizer_folder(model)
