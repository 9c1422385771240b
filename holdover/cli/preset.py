"""``--preset`` of ``holdover eval``: a paper's settings in place of the options' defaults."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdover.errors import ConfigError
from holdover.evaluation.presets import PRESETS, preset


def _apply(context: typer.Context, name: str | None) -> str | None:
    if name is not None:
        found = preset(name)
        # what is read as defaults; options that are given win over it
        context.default_map = {**(context.default_map or {}), **found.options}
        if found.differs:
            typer.echo(f"{found.source} {found.differs}", err=True)
    return name


Preset = Annotated[
    str | None,
    typer.Option(
        is_eager=True,
        callback=_apply,
        help=f"Options as a paper sets them, other options given win: {', '.join(PRESETS)}.",
    ),
]


def require_problems(name: str | None, problems: Path | None) -> None:
    """Refuse a preset whose problems no package has, unless there is a file of them.

    Raises:
        ConfigError: the file is missing.
    """
    wanted = "" if name is None else PRESETS[name].problems
    if wanted and problems is None:
        raise ConfigError(f"preset {name} needs a file of its problems: give --problems FILE with {wanted}")
