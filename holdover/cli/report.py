"""``holdover report``: run the protocols on some models, and make pages of what they measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from holdover.cli.errors import Debug, Group

# as `holdover.report.quality.suite` has them
SizeName = Literal["quick", "full"]

Root = Annotated[Path, typer.Option("--out", help="Folder of results and unfinished work.")]

commands = typer.Typer(cls=Group, no_args_is_help=True, help="Measure models by the papers' protocols, and report.")


@commands.command("run")
def run(
    models: Annotated[list[str], typer.Argument(help="Names of bundled models, directories of models, or hub ids.")],
    text: Annotated[Path, typer.Option(exists=True, dir_okay=False, help="Text that no model was trained on.")],
    out: Root = Path("build/report"),
    problems: Annotated[
        Path | None,
        typer.Option(exists=True, file_okay=False, help="Folder with problems for each model, MODEL.jsonl."),
    ] = None,
    size: Annotated[SizeName, typer.Option(help="How much is run.")] = "full",
    jobs: Annotated[int, typer.Option(min=1, help="Runs at a time, of one thread each.")] = 2,
    debug: Debug = False,
) -> None:
    """Run every protocol on every model. A second call goes on where the first stopped, and repeats nothing."""
    from holdover.report.quality.run import jobs_of, run_all
    from holdover.report.quality.suite import Step, size_named, steps

    chosen = size_named(size)

    def steps_of(model: str) -> list[Step]:
        asked = None if problems is None else problems / f"{Path(model).name}.jsonl"
        return steps(model, chosen, text, asked if asked is not None and asked.exists() else None)

    run_all(jobs_of(models, out, steps_of), jobs, typer.echo)


@commands.command("build")
def build(
    out: Annotated[Path, typer.Argument(help="Folder that `holdover report run` wrote.")] = Path("build/report"),
    pages: Annotated[Path, typer.Option("--pages", "-o", help="Folder to write.")] = Path("docs/report"),
    training: Annotated[Path | None, typer.Option(help="Scores of training, a folder for each model.")] = None,
    benchmarks: Annotated[Path | None, typer.Option(help="Result files of benchmarks.")] = None,
    debug: Debug = False,
) -> None:
    """Write pages of tables, plots and findings. Results that lack a count, an interval or a digest are refused."""
    from holdover.report.quality.build import build as build_pages

    written = build_pages(out / "results", pages, training=training, benchmarks=benchmarks)
    typer.echo(f"wrote {len(written)} files to {pages}")


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    app.add_typer(commands, name="report")
