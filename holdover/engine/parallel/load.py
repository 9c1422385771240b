"""Loading one rank's part of a model: what is placed where is decided first, from the files alone."""

from __future__ import annotations

from pathlib import Path

from holdover.arch.registry import layout_from_config
from holdover.engine.hf.loader import Loaded, load
from holdover.engine.options import EngineOptions
from holdover.engine.parallel.options import options_over_ranks
from holdover.engine.parallel.ranks import Ranks
from holdover.engine.parallel.shard import Shard
from holdover.engine.planning import Planned, plan_for
from holdover.errors import ConfigError
from holdover.retention.placement import PlacementMode
from holdover.weights.source import resolve


def load_shard(
    model: str, options: EngineOptions, ranks: Ranks, plan: str | Path | None, mode: PlacementMode
) -> tuple[Loaded, Planned]:
    """Load what this rank computes; every rank of the group makes this call.

    Args:
        model: name of a bundled model, a directory, or a hub id.
        options: dtype and device, and what else is asked for.
        ranks: the group.
        plan: as for `choose_plan`.
        mode: who computes and who stores what the plan retains.

    Raises:
        HoldoverError: as `load` and `choose_plan`; the ranks cannot share the model's heads; an option is not for
            several ranks. What fails on one rank fails on all.
    """
    with ranks.agreed():
        options_over_ranks(options)
        files = resolve(model)
        planned = plan_for(files, plan)
        shard = Shard.of(layout_from_config(files.config).state, ranks, planned.plan, mode)
        loaded = load(model, dtype=options.dtype, device=options.device, shard=shard)
    return loaded, planned


def check_alone(mode: PlacementMode) -> None:
    """Check that one process is asked for nothing that takes several.

    Raises:
        ConfigError: it is.
    """
    if mode != "off":
        raise ConfigError(
            f"--placement {mode} balances ranks, and there is one: start torchrun --nproc-per-node P -m holdover"
        )
