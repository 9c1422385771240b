"""``holdover chunks``: documents that a running server reuses in prompts, and what reusing them costs in quality."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from holdover.cli import chunk_diagnosis, chunk_gate
from holdover.cli.cache import DEFAULT_URL, Json, Key, Url, ids_of
from holdover.cli.client import Client
from holdover.cli.errors import Group
from holdover.errors import ConfigError

CHUNKS = "/v1/chunks"
_DIFFERS = 1

commands = typer.Typer(
    cls=Group, no_args_is_help=True, help="Keep documents for prompts of a running server; measure what reuse costs."
)


@commands.command("add")
def add(
    files: Annotated[list[str] | None, typer.Argument(help="Files of text; - for standard input.")] = None,
    tokens: Annotated[str | None, typer.Option(help="A document as token ids, with commas or spaces between.")] = None,
    salt: Annotated[str | None, typer.Option(help="The cache_salt of the requests that it is for.")] = None,
    url: Url = DEFAULT_URL,
    api_key: Key = None,
) -> None:
    """Prefill documents and keep them, cut into chunks as long as the server makes them."""
    if not files and tokens is None:
        raise ConfigError("give files of text, - for standard input, or --tokens")
    client = Client(url, api_key)
    documents: list[tuple[str, dict[str, Any]]] = [(name, {"text": _text(name)}) for name in files or ()]
    if tokens is not None:
        documents.append(("tokens", {"tokens": ids_of(tokens)}))
    for name, body in documents:
        made = client.request("POST", CHUNKS, body | ({"cache_salt": salt} if salt is not None else {}))
        kept, total = made["data"], sum(one["tokens"] for one in made["data"])
        typer.echo(f"{name}: {total} tokens in {len(kept)} chunks, {made['built']} built")
        for one in kept:
            typer.echo(f"  {one['id']}: {one['tokens']} tokens")


@commands.command("list")
def show(url: Url = DEFAULT_URL, api_key: Key = None, as_json: Json = False) -> None:
    """List the chunks, the shortest first."""
    found = list(Client(url, api_key).pages(CHUNKS))
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    table = Table(box=None, pad_edge=False)
    for name in ("id", "tenant", "tier"):
        table.add_column(name)
    for name in ("tokens", "KiB", "age s", "hits"):
        table.add_column(name, justify="right")
    table.add_column("")
    for one in found:
        numbers = (f"{one['tokens']:,}", f"{one['bytes'] / 2**10:,.1f}", f"{one['age_s']:,.0f}", f"{one['hits']:,}")
        marks = " ".join([*one["extras"], *(["in use"] if one["in_use"] else [])])
        table.add_row(one["id"], one["tenant"], one["tier"], *numbers, marks)
    console = Console(highlight=False)
    console.print(table)
    console.print(f"{len(found):,} chunks, {sum(one['bytes'] for one in found) / 2**20:,.1f} MiB")


@commands.command("rm")
def remove(
    chunk_ids: Annotated[list[str], typer.Argument(metavar="ID...", help="As `list` shows them.")],
    url: Url = DEFAULT_URL,
    api_key: Key = None,
) -> None:
    """Drop chunks."""
    client = Client(url, api_key)
    for chunk_id in chunk_ids:
        client.request("DELETE", f"{CHUNKS}/{chunk_id}")
        typer.echo(f"removed {chunk_id}")


@commands.command("verify")
def verify(
    chunk_id: Annotated[str | None, typer.Argument(metavar="ID", help="As `list` shows it; all if unset.")] = None,
    url: Url = DEFAULT_URL,
    api_key: Key = None,
) -> None:
    """Prefill chunks again and compare; the exit code is 1 if one of them differs by more than rounding explains."""
    client = Client(url, api_key)
    ids = [one["id"] for one in client.pages(CHUNKS)] if chunk_id is None else [chunk_id]
    verdicts = [client.request("POST", f"{CHUNKS}/{one}/verify") for one in ids]
    for verdict in verdicts:
        errors = ", ".join(f"{part['name']} {_error(part['error'])}" for part in verdict["parts"])
        typer.echo(f"{verdict['id']}: {'same' if verdict['same'] else 'DIFFERS'}; largest relative errors: {errors}")
    if not all(verdict["same"] for verdict in verdicts):
        raise typer.Exit(_DIFFERS)


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    chunk_diagnosis.register(commands)
    chunk_gate.register(commands)
    app.add_typer(commands, name="chunks")


def _text(name: str) -> str:
    try:
        return sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{name} cannot be read as text: {getattr(error, 'strerror', None) or error}") from None


def _error(error: float | None) -> str:
    return "not a number" if error is None else f"{error:.1g}"
