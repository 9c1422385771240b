"""``holdover cache``: what a running server's cache holds, what stays in it, and how it is emptied."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from holdover.cli.client import Client
from holdover.cli.errors import Group
from holdover.errors import ConfigError

ENTRIES, FLUSH, PINS = "/v1/cache/entries", "/v1/cache/flush", "/v1/cache/pins"

Url = Annotated[str, typer.Option(envvar="HOLDOVER_URL", help="Where the server is.")]
Key = Annotated[
    str | None, typer.Option(envvar="HOLDOVER_API_KEY", help="Key of the server, if it has any.", show_envvar=True)
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
DEFAULT_URL = "http://127.0.0.1:8000"

commands = typer.Typer(cls=Group, no_args_is_help=True, help="See, pin and flush what a running server has cached.")


@commands.command("ls")
def show(url: Url = DEFAULT_URL, api_key: Key = None, as_json: Json = False) -> None:
    """List the checkpoints in memory, the shallowest first."""
    entries = list(Client(url, api_key).pages(ENTRIES))
    if as_json:
        typer.echo(json.dumps(entries, indent=2))
        return
    table = Table(box=None, pad_edge=False)
    for name in ("id", "tenant", "tier", "lineage"):
        table.add_column(name)
    for name in ("depth", "KiB", "age s", "hits"):
        table.add_column(name, justify="right")
    table.add_column("")
    for one in entries:
        numbers = (f"{one['depth']:,}", f"{one['bytes'] / 2**10:,.1f}", f"{one['age_s']:,.0f}", f"{one['hits']:,}")
        marks = " ".join(name for name in ("pinned", "spilled") if one[name])
        table.add_row(one["id"], one["tenant"], one["tier"], one["lineage"], *numbers, marks)
    console = Console(highlight=False)
    console.print(table)
    console.print(f"{len(entries):,} checkpoints, {sum(one['bytes'] for one in entries) / 2**20:,.1f} MiB")


@commands.command("pin")
def pin(
    text: Annotated[str | None, typer.Argument(help="The prefix as text; - for standard input.")] = None,
    tokens: Annotated[str | None, typer.Option(help="The prefix as token ids, with commas or spaces between.")] = None,
    messages: Annotated[
        Path | None, typer.Option(help="The prefix as a JSON file of chat messages; - for standard input.")
    ] = None,
    salt: Annotated[str | None, typer.Option(help="The cache_salt of the requests that it is for.")] = None,
    url: Url = DEFAULT_URL,
    api_key: Key = None,
) -> None:
    """Keep a prefix in the cache; what of it is missing is computed."""
    given = {"text": text, "tokens": tokens, "messages": messages}
    if sum(value is not None for value in given.values()) != 1:
        raise ConfigError("give the prefix as one of TEXT, --tokens and --messages")
    body: dict[str, Any] = {"cache_salt": salt} if salt is not None else {}
    if text is not None:
        body["text"] = sys.stdin.read() if text == "-" else text
    elif tokens is not None:
        body["tokens"] = ids_of(tokens)
    elif messages is not None:
        body["messages"] = _messages(messages)
    made = Client(url, api_key).request("POST", PINS, body)
    typer.echo(f"pinned {made['id']}: {made['depth']} tokens")


@commands.command("unpin")
def unpin(
    pin_id: Annotated[str | None, typer.Argument(metavar="ID", help="As `pin` and `ls` show it.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Unpin everything.")] = False,
    url: Url = DEFAULT_URL,
    api_key: Key = None,
) -> None:
    """Let a prefix go like any other."""
    if (pin_id is None) == (not every):
        raise ConfigError("give the ID of a pin, or --all")
    client = Client(url, api_key)
    if pin_id is None:
        typer.echo(f"unpinned {client.request('DELETE', PINS)['deleted']} prefixes")
    else:
        client.request("DELETE", f"{PINS}/{pin_id}")
        typer.echo(f"unpinned {pin_id}")


@commands.command("flush")
def flush(url: Url = DEFAULT_URL, api_key: Key = None) -> None:
    """Drop everything that is neither pinned nor in use."""
    dropped = Client(url, api_key).request("POST", FLUSH)["checkpoints"]
    typer.echo(f"dropped {dropped} checkpoints")


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    app.add_typer(commands, name="cache")


def ids_of(text: str) -> list[int]:
    """Token ids of ``--tokens``.

    Raises:
        ConfigError: it holds something else.
    """
    try:
        return [int(word) for word in text.replace(",", " ").split()]
    except ValueError:
        raise ConfigError("--tokens takes token ids: whole numbers with commas or spaces between") from None


def _messages(path: Path) -> Any:
    try:
        return json.loads(sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read as JSON: {getattr(error, 'strerror', None) or error}") from None
