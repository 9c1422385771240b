"""How commands fail: one line on stderr and exit code 2, a traceback only for those who ask for one."""

from __future__ import annotations

import os
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from holdover.errors import HoldoverError

BAD_INPUT = 2
_DEBUG = "holdover.debug"


def _remember(context: typer.Context, value: bool) -> bool:
    # shared by all contexts of one call, so that the flag may stand before the command or after it
    context.meta[_DEBUG] = context.meta.get(_DEBUG, False) or value
    return value


Debug = Annotated[bool, typer.Option("--debug", callback=_remember, help="Show tracebacks. Also HOLDOVER_DEBUG=1.")]


class Group(TyperGroup):
    """Commands that report `HoldoverError` in one line."""

    def invoke(self, ctx: Any) -> Any:
        """Run the chosen command."""
        try:
            return super().invoke(ctx)
        except HoldoverError as error:
            if ctx.meta.get(_DEBUG) or os.environ.get("HOLDOVER_DEBUG", "") not in ("", "0"):
                raise
            fail(error)


def fail(error: HoldoverError) -> NoReturn:
    """Say what is wrong and leave."""
    typer.echo(f"error: {' '.join(str(error).split())}", err=True)
    raise typer.Exit(BAD_INPUT) from None
