"""``holdover plan``: decide from a model's weights which units of its recurrent state checkpoints keep."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from holdover.cli import loading
from holdover.cli.errors import Debug
from holdover.errors import ConfigError, PlanError
from holdover.report.tables import ratio, size
from holdover.weights.source import open_files

if TYPE_CHECKING:
    from holdover.arch.layout import StateLayout
    from holdover.retention.plan import RetentionPlan

Model = Annotated[str, typer.Argument(help="Name of a bundled model, directory, hub id, or address of a directory.")]
GateInput = Annotated[
    float | None, typer.Option("--a-s", help="Representative gate input; the default of the model's gate if unset.")
]
Epsilon = Annotated[float, typer.Option(help="What is left of a unit after one horizon.")]


def plan(
    model: Model,
    w_max: Annotated[int, typer.Option("--wmax", help="Keep the units that last longer than so many tokens.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="File to write; in the user's plan directory if unset."),
    ] = None,
    gate_input: GateInput = None,
    epsilon: Epsilon = 1e-3,
    random: Annotated[
        int | None, typer.Option(metavar="SEED", help="Keep as many units drawn at random: a control.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    debug: Debug = False,
) -> None:
    """Write a retention plan. Of the weights only headers and decay parameters are read."""
    if random is not None and output is None:
        raise ConfigError("a random plan is a control, which no server should find by itself: name a file with -o")
    if output is not None:
        _check_free(output, force=force)
    from holdover.report.retention import calibration_note
    from holdover.retention.decay import read_decay
    from holdover.retention.plan import RetentionPlan
    from holdover.retention.plan_file import user_plan, write_plan

    with loading.progress(Console(stderr=True, highlight=False), f"reading {model}"):
        decay = read_decay(open_files(model))
    made = RetentionPlan.of(decay, w_max, gate_input=gate_input, epsilon=epsilon)
    if random is not None:
        made = made.random_like(random)
    path = user_plan(decay.fingerprint) if output is None else output
    _check_free(path, force=force)
    write_plan(made, path)
    notes = filter(None, [calibration_note(decay, made.gate_input)])
    typer.echo("\n".join([f"wrote {path}", *_summary(made, decay.layout.state), *notes]))


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command("plan")(plan)


def _check_free(path: Path, *, force: bool) -> None:
    if path.exists() and not force:
        raise PlanError(f"{path} exists: choose another file with -o, or overwrite it with --force")


def _summary(plan: RetentionPlan, layout: StateLayout) -> list[str]:
    from holdover.codec import Codec, ratios

    kept, smaller = sum(plan.counts), ratios(layout, plan)
    full, int8 = Codec(layout, plan).nbytes, Codec(layout, plan, element="int8").nbytes
    return [
        f"W_max {plan.w_max:,} tokens, {plan.gate} gate, a_s {plan.gate_input:g}, epsilon {plan.epsilon:g}",
        f"selected by {plan.selection}: {kept:,} of {plan.units:,} units ({100 * kept / plan.units:.1f} %)",
        f"one checkpoint: {size(full)}, {ratio(smaller.c_ckpt)} smaller than dense",
        f"one as INT8: {size(int8)}, {ratio(smaller.c_ckpt_int8)} smaller",
        "no quality gate recorded: run holdover calibrate",
    ]
