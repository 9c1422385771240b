"""What an engine over ranks does not do."""

from __future__ import annotations

from dataclasses import replace

from holdover.engine.options import EngineOptions
from holdover.errors import ConfigError


def options_over_ranks(options: EngineOptions) -> EngineOptions:
    """The options as several ranks run them: prompts over chunks are refused, and no decode step is captured.

    Raises:
        ConfigError: an option is asked for that several ranks do not have; the message names all of them.
    """
    refused = {
        "--speculate mtp": options.speculate == "mtp",
        "--host-budget": options.host_budget is not None,
        "--spill-dir": options.spill_dir is not None,
        "--shadow-check": options.shadow_share > 0,
        "padded checkpoints": options.arrangement != "ragged",
    }
    if found := [name for name, asked in refused.items() if asked]:
        raise ConfigError(f"{', '.join(found)}: not with several ranks. Leave it out, or start one process")
    return replace(options, chunks=replace(options.chunks, use="refuse"), cuda_graphs=False)
