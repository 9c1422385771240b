"""What the commands that measure a model share: loading and naming it, lists of numbers, bars and tables."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import track
from rich.table import Table as RichTable

from holdover import __version__
from holdover.cli import loading
from holdover.errors import ConfigError
from holdover.files import replacing
from holdover.report.tables import Table

if TYPE_CHECKING:
    from holdover.engine.hf.loader import Loaded

T = TypeVar("T")

_PIPE_WIDTH = 160

Text = Annotated[Path, typer.Option("--text", help="Text that the model was not trained on.")]
Cutoffs = Annotated[str, typer.Option("--wmax", help="Retention cutoffs in tokens, with commas.")]


def load_model(model: str, dtype: str, device: str, threads: int | None) -> Loaded:
    """Load a model, saying so.

    Raises:
        HoldoverError: the model or an option cannot be used.
    """
    with loading.progress(console(), f"loading {model}"):
        # the libraries' own bars and warnings would be drawn into ours
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
        from holdover.engine.hf.loader import load

        if threads is not None:
            import torch

            torch.set_num_threads(threads)
        return load(model, dtype=dtype, device=device)


def measured_by(loaded: Loaded, **more: Any) -> dict[str, Any]:
    """What decides a model's answers, and the versions that gave them."""
    import torch

    return {"holdover": __version__, "torch": torch.__version__, "model": loaded.digest, **more}


def numbers(text: str, option: str) -> list[int]:
    """Positive numbers separated by commas, each once, in their order.

    Raises:
        ConfigError: the text is anything else.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) for part in parts):
        raise ConfigError(f"{option} is {text!r}; wanted positive numbers with commas, such as 16,64")
    return list(dict.fromkeys(map(int, parts)))


def shares(text: str, option: str) -> list[float]:
    """Numbers separated by commas, each once, in their order; whoever takes them says which are too large.

    Raises:
        ConfigError: the text is anything else.
    """
    try:
        return list(dict.fromkeys(float(part) for part in text.split(",")))
    except ValueError:
        raise ConfigError(f"{option} is {text!r}; wanted numbers from 0 to 1 with commas") from None


def tracked(items: Iterable[T], total: int, what: str) -> Iterator[T]:
    """The same items, with a bar on a terminal and a line elsewhere."""
    err = console()
    if not err.is_terminal:
        err.print(what, markup=False, soft_wrap=True)
    yield from track(items, what, total, console=err, disable=not err.is_terminal)


def write(path: Path, facts: Mapping[str, Any]) -> None:
    """Write a result file, whole or not at all.

    Raises:
        ConfigError: it cannot be written.
    """
    try:
        with replacing(path) as temporary:
            temporary.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written: {error.strerror or error}; the work beside it is kept, so --resume writes it"
        ) from error


def console() -> Console:
    """Where progress is shown."""
    return Console(stderr=True, highlight=False)


def show(table: Table) -> None:
    """Print a table; where output is no terminal there is no width to fit."""
    out = Console(highlight=False)
    if not out.is_terminal:
        out = Console(highlight=False, width=_PIPE_WIDTH)
    if table.title:
        out.print(f"\n{table.title}", markup=False)
    shown = RichTable(*table.columns, box=SIMPLE_HEAD, show_edge=False)
    for row in table.rows:
        shown.add_row(*row)
    out.print(shown)
