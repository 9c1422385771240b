"""``holdover generate``: one answer in the terminal."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from holdover.cli import loading
from holdover.cli.errors import Debug
from holdover.errors import ConfigError
from holdover.weights.bundled import DEFAULT_MODEL

if TYPE_CHECKING:
    from holdover.engine.engine import Engine
    from holdover.engine.sampling import SamplingParams


def generate(
    prompt: Annotated[str, typer.Argument(help="The text, or - to read it from standard input.")],
    model: Annotated[str, typer.Option(help="Name of a bundled model, directory of a model, or hub id.")] = (
        DEFAULT_MODEL
    ),
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Most tokens to generate; all that fit if unset.")
    ] = 128,
    temperature: Annotated[float | None, typer.Option(help="0 for greedy; the model's default if unset.")] = None,
    seed: Annotated[int | None, typer.Option(help="Makes sampling reproducible.")] = None,
    chat: Annotated[
        bool | None, typer.Option("--chat/--no-chat", help="Ask as a user, or continue the text; chat if it can.")
    ] = None,
    stream: Annotated[bool, typer.Option("--stream/--no-stream", help="Print text as it comes.")] = True,
    show_cache: Annotated[bool, typer.Option("--show-cache", help="Say on stderr what the cache gave.")] = False,
    dtype: loading.Dtype = "auto",
    device: loading.Device = "auto",
    threads: loading.Threads = None,
    debug: Debug = False,
) -> None:
    """Complete one prompt and print the text."""
    load = partial(loading.load_engine, model, dtype=dtype, device=device, threads=threads)
    with loading.join(device) as ranks:
        if ranks is not None and not ranks.leads:
            loading.follow(partial(load, ranks=ranks))
            return
        text = _from_stdin() if prompt == "-" else prompt
        with loading.progress(Console(stderr=True, highlight=False), f"loading {model}"):
            engine = load(ranks=ranks)
        from holdover.engine.sampling import SamplingParams

        params = SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=seed)
        as_chat = engine.loaded.tokenizer.has_chat_template if chat is None else chat
        with engine:
            report = _print(engine, text, params, as_chat=as_chat, stream=stream)
        if show_cache:
            typer.echo(json.dumps(report), err=True)


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command("generate")(generate)


def _print(engine: Engine, text: str, params: SamplingParams, *, as_chat: bool, stream: bool) -> dict[str, Any]:
    """Print the answer; returns what the cache gave it."""
    from holdover.engine.chat import render_chat

    prompt: str | list[int] = text
    request: dict[str, Any] = {}
    if as_chat:
        prompt, request["boundaries"] = render_chat(engine.loaded.tokenizer, [{"role": "user", "content": text}])
    report: dict[str, Any] = {}
    for update in engine.stream(prompt, params, **request):
        if stream:
            typer.echo(update.text, nl=False)
            sys.stdout.flush()
        if update.output is not None:
            if update.output.error is not None:
                raise update.output.error
            report = asdict(update.output.cache)
            typer.echo("" if stream else update.output.text)
    return report


def _from_stdin() -> str:
    data = sys.stdin.buffer.read()
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"standard input is not valid UTF-8: {error.reason} at byte {error.start}") from None
