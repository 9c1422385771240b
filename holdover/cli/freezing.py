"""Freezing a recording for a model, for ``holdover trace`` and for a ``holdover bench serve`` without a trace."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from holdover.cli import loading, measuring
from holdover.errors import ConfigError

if TYPE_CHECKING:
    from holdover.evaluation.traces.build import Preset, Tally
    from holdover.evaluation.traces.trace import Trace

PRESET = "small"
# of a benchmark's runs: they are part of what a digest says
SEEDS = "1,2,3,4,5"


@dataclass(frozen=True)
class Frozen:
    """A trace, and what became of the rest of its recording.

    Attributes:
        trace: the trace.
        preset: the scale that was asked for.
        recording: where the conversations are from.
        tally: why others were passed over.
        malformed: entries that are no conversation.
    """

    trace: Trace
    preset: Preset
    recording: Path
    tally: Tally
    malformed: int

    @property
    def shortage(self) -> str | None:
        """What is to be said if the recording has fewer conversations than the preset asks for."""
        found, wanted = len(self.trace.dialogues), self.preset.conversations
        return f"{self.recording} has only {found} of {wanted} conversations that fit" if found < wanted else None


def preset_named(name: str) -> Preset:
    """The scale of that name.

    Raises:
        ConfigError: there is none.
    """
    from holdover.evaluation.traces.build import PRESETS

    if name not in PRESETS:
        raise ConfigError(f"--preset is {name!r}; wanted one of {', '.join(PRESETS)}")
    return PRESETS[name]


def freeze(recording: Path, preset: Preset, model: str, folder: Path, seeds: tuple[int, ...]) -> Frozen:
    """Take the first conversations that fit, saying so.

    Args:
        recording: of ShareGPT or WildChat.
        preset: the scale.
        model: what the trace says that it was made for.
        folder: with that model's tokenizer and chat template.
        seeds: of the runs.

    Raises:
        HoldoverError: the recording or the tokenizer cannot be read, or no conversation fits.
    """
    from holdover.engine.hf.tokenizer import Tokenizer
    from holdover.evaluation.traces.build import Tally, build_trace
    from holdover.evaluation.traces.sources import open_recordings

    tokenizer, recordings, tally = Tokenizer(folder), open_recordings(recording), Tally()
    with loading.progress(measuring.console(), f"reading {recording}"):
        trace = build_trace(
            recordings,
            preset,
            tokenizer,
            tokenizer.end_tokens,
            model=model,
            source=recording.name,
            seeds=seeds,
            tally=tally,
        )
    return Frozen(trace, preset, recording, tally, recordings.skipped)
