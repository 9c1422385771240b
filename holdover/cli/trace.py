"""``holdover trace``: from recorded conversations to a frozen list of requests."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdover.cli import loading, measuring
from holdover.cli.errors import Debug
from holdover.cli.freezing import PRESET, SEEDS, freeze, preset_named


def trace(
    recording: Annotated[
        Path, typer.Argument(help="Conversations: ShareGPT's JSON, or WildChat's .parquet files or their directory.")
    ],
    model: loading.Model,
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write, a JSON object a line.")],
    preset: Annotated[
        str, typer.Option(help="Scale: paper (16k context), small (4k) or tiny (1k), each with four exchanges.")
    ] = PRESET,
    seeds: Annotated[str, typer.Option(help="Seeds of a benchmark's runs, with commas.")] = SEEDS,
    aiperf: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the first run for AIPerf, as multi_turn.")
    ] = None,
    temperature: Annotated[float, typer.Option(min=0, help="What AIPerf is to sample at.")] = 1.0,
    debug: Debug = False,
) -> None:
    """Freeze conversations as the requests of a serving benchmark (DASC App. C.3).

    The first conversations that fit are taken, with prompts and replies counted by the model's own tokenizer and chat
    template. The file holds their texts.
    """
    runs = tuple(measuring.numbers(seeds, "--seeds"))
    from holdover.evaluation.traces.aiperf import write_aiperf
    from holdover.evaluation.traces.trace import write_trace
    from holdover.weights.source import tokenizer_folder

    frozen = freeze(recording, preset_named(preset), model, tokenizer_folder(model), runs)
    made, tally = frozen.trace, frozen.tally
    write_trace(made, output)
    if aiperf is not None:
        write_aiperf(made, aiperf, seed=runs[0], temperature=temperature)
    prompts = [turn.prompt_tokens for dialogue in made.dialogues for turn in dialogue.turns]
    found = len(made.dialogues)
    lines = [
        f"wrote {output}: {found} conversations, {made.num_requests} requests, digest {made.digest}",
        f"prompts of {min(prompts):,} to {max(prompts):,} tokens, {sum(prompts):,} in all",
        f"passed over {tally.read - found} of {tally.read}: {tally.shape} with too few exchanges, {tally.length} too "
        f"short or too long, {tally.refused} refused by the template; {frozen.malformed} entries were malformed",
    ]
    if frozen.shortage is not None:
        lines.append(f"warning: {frozen.shortage}")
    typer.echo("\n".join(lines))


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command("trace")(trace)
