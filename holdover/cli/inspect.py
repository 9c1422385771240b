"""``holdover inspect``: what one model keeps per sequence, how long it lasts, and what a checkpoint of it weighs."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as RichTable

from holdover.arch.layout import ModelLayout
from holdover.arch.registry import layout_from_config
from holdover.cli import loading
from holdover.cli.errors import Debug
from holdover.cli.plan import Epsilon, GateInput
from holdover.errors import ConfigError
from holdover.report.layout import layout_facts, layout_tables
from holdover.report.tables import Table
from holdover.weights.source import load_config, open_files

if TYPE_CHECKING:
    from holdover.report.pictures import Picture
    from holdover.report.retention import RetentionReport

    Draw = Callable[[RetentionReport], list[Picture]]

# where output is no terminal there is no width to fit; a narrow guess would cut columns
_PIPE_WIDTH = 160
_NO_WEIGHTS = "there are no weights beside the configuration, and horizons need them"


def inspect(
    model: Annotated[
        str, typer.Argument(help="Name of a bundled model, directory, config.json, hub id, or address of a directory.")
    ],
    w_max: Annotated[str, typer.Option("--wmax", help="Retention cutoffs in tokens, with commas.")] = "16,64,128,512",
    gate_input: GateInput = None,
    epsilon: Epsilon = 1e-3,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
    full: Annotated[
        bool, typer.Option("--full", help="List every layer instead of groups of equal ones; as JSON, every horizon.")
    ] = False,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the report with pictures.")] = None,
    png: Annotated[Path | None, typer.Option(metavar="DIR", help="Write the pictures.")] = None,
    debug: Debug = False,
) -> None:
    """Show a model's recurrent state: layers, bytes, retention horizons, and what checkpoints weigh at each cutoff.

    Of the weights only headers and decay parameters are read.
    """
    cutoffs = _cutoffs(w_max)
    config = load_config(model)
    layout = layout_from_config(config)
    draw = None if html is None and png is None else _drawing()
    report = None
    if _has_weights(model):
        report = _report(model, cutoffs, gate_input, epsilon, quantised=_is_quantised(config))
    if draw is not None:
        _write_pictures(draw, model, layout, report, html, png)
    if as_json:
        typer.echo(json.dumps(_facts(model, layout, report, full=full), indent=2, allow_nan=False))
    else:
        _print(model, layout, report, full=full)


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command("inspect")(inspect)


def _cutoffs(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise ConfigError(f"--wmax is {text!r}; wanted numbers of tokens with commas, such as 16,64")
    return list(dict.fromkeys(map(int, parts)))


def _has_weights(model: str) -> bool:
    """Whether weights can be looked for: not beside a lone configuration."""
    path = Path(model).expanduser()
    return not path.is_file() and not (path.is_dir() and not any(path.glob("*.safetensors")))


def _is_quantised(config: dict[str, Any]) -> bool:
    parts = (config, config.get("text_config"))
    return any(isinstance(part, dict) and part.get("quantization_config") for part in parts)


def _report(
    model: str, cutoffs: Sequence[int], gate_input: float | None, epsilon: float, *, quantised: bool
) -> RetentionReport:
    from holdover.report.retention import RetentionReport
    from holdover.retention.decay import read_decay

    with loading.progress(Console(stderr=True, highlight=False), f"reading {model}"):
        decay = read_decay(open_files(model))
        return RetentionReport.of(decay, cutoffs, gate_input=gate_input, epsilon=epsilon, quantised=quantised)


def _facts(model: str, layout: ModelLayout, report: RetentionReport | None, *, full: bool) -> dict[str, Any]:
    facts = layout_facts(model, layout, full=full)
    if report is None:
        return facts
    from holdover.report.retention import retention_facts

    return facts | retention_facts(report, full=full)


def _contents(
    model: str, layout: ModelLayout, report: RetentionReport | None, *, full: bool
) -> tuple[str, list[Table], list[str]]:
    """Title, tables and notes of the report."""
    title, tables = f"{model}: {layout.architecture}, {layout.num_layers} layers", layout_tables(layout, full=full)
    if report is None:
        return title, tables, [_NO_WEIGHTS]
    from holdover.report.retention_tables import retention_tables

    return title, tables + retention_tables(report), report.notes


def _print(model: str, layout: ModelLayout, report: RetentionReport | None, *, full: bool) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_PIPE_WIDTH)
    title, tables, notes = _contents(model, layout, report, full=full)
    console.print(title, markup=False)
    for table in tables:
        console.print(f"\n{table.title}", markup=False)
        console.print(_rich(table))
    for note in notes:
        console.print(f"\n{note}", markup=False)


def _rich(table: Table) -> RichTable:
    shown = RichTable(box=SIMPLE_HEAD, show_edge=False, show_header=any(table.columns))
    for column in table.columns:
        shown.add_column(column)
    for row in table.rows:
        shown.add_row(*row)
    return shown


def _drawing() -> Draw:
    """What draws a report; if it cannot, that is said before the model is read."""
    from holdover.report.pictures import draw

    return draw


def _write_pictures(
    draw: Draw, model: str, layout: ModelLayout, report: RetentionReport | None, html: Path | None, png: Path | None
) -> None:
    if report is None:
        raise ConfigError(f"no pictures of {model}: {_NO_WEIGHTS}")
    from holdover.report.page import render_page

    pictures = draw(report)
    try:
        if png is not None:
            png.mkdir(parents=True, exist_ok=True)
            for picture in pictures:
                (png / f"{picture.name}.png").write_bytes(picture.png)
        if html is not None:
            title, tables, notes = _contents(model, layout, report, full=False)
            page = render_page(title, notes, tables, {picture.caption: picture.png for picture in pictures})
            html.write_text(page, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{error.filename} cannot be written: {error.strerror or error}") from error
