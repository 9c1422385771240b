"""The ``holdover`` command. Torch is imported by the commands that need it, not for help."""

from __future__ import annotations

from typing import Annotated

import typer

from holdover import __version__
from holdover.cli import (
    bench,
    cache,
    calibrate,
    chunks,
    evaluate,
    generate,
    inspect,
    plan,
    report,
    serve,
    simulate,
    trace,
    validate,
)
from holdover.cli.errors import Debug, Group

app = typer.Typer(
    cls=Group,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Hybrid language models whose recurrent state is cached: serve, generate, inspect, plan.",
)


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"holdover {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Serve, generate, inspect, plan."""


serve.register(app)
generate.register(app)
inspect.register(app)
plan.register(app)
validate.register(app)
calibrate.register(app)
evaluate.register(app)
report.register(app)
cache.register(app)
chunks.register(app)
trace.register(app)
simulate.register(app)
bench.register(app)
