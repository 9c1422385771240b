"""``holdover bench serve``: put conversations to a running server and measure what its clients see."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from holdover.cli import measuring
from holdover.cli.bench_results import Results, Run
from holdover.cli.errors import Debug
from holdover.cli.workload import workload
from holdover.errors import ConfigError, EndpointError

if TYPE_CHECKING:
    from holdover.evaluation.serve.drive import Load, Measured
    from holdover.evaluation.serve.endpoint import Endpoint, ServedModel
    from holdover.evaluation.traces.trace import Trace

bench = typer.Typer(no_args_is_help=True, help="Measure a running server.")


@bench.callback()
def _commands() -> None:
    """Measure a running server."""


@bench.command("serve")
def serve(
    url: Annotated[str, typer.Argument(help="Root of an OpenAI-compatible server.")] = "http://127.0.0.1:8000",
    trace: Annotated[Path | None, typer.Option(help="Frozen trace, as holdover trace writes it.")] = None,
    preset: Annotated[
        str | None,
        typer.Option(help="Instead of a trace, freeze conversations now: small, tiny or paper; small if neither."),
    ] = None,
    recording: Annotated[
        Path | None, typer.Option(help="Those conversations, as holdover trace takes them; bundled ones if unset.")
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Model whose tokenizer counts them; what is served, if it is bundled."),
    ] = None,
    clients: Annotated[int, typer.Option(min=1, help="Conversations under way at a time.")] = 16,
    seeds: Annotated[str | None, typer.Option(help="Runs to make, with commas; the trace's own if unset.")] = None,
    model: Annotated[str | None, typer.Option(help="Name that the server knows the model by; its first if unset.")] = (
        None
    ),
    temperature: Annotated[float, typer.Option(min=0, help="What requests are sampled at.")] = 1.0,
    ignore_eos: Annotated[
        bool,
        typer.Option("--ignore-eos/--no-ignore-eos", help="Ask for replies as long as recorded ones; not all know it."),
    ] = True,
    flush: Annotated[bool, typer.Option("--flush/--no-flush", help="Empty a Holdover server's cache first.")] = True,
    stall: Annotated[float, typer.Option(min=1, help="Seconds without a byte after which a server is given up.")] = 600,
    arm: Annotated[str, typer.Option(help="What to call what is served, in the results.")] = "",
    server_limit: Annotated[int | None, typer.Option(help="Requests that the server runs together, likewise.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File for the results, with every request.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as one JSON object, not a table.")] = False,
    api_key: Annotated[str | None, typer.Option(envvar="HOLDOVER_API_KEY", help="Key to send.")] = None,
    debug: Debug = False,
) -> None:
    """Replay conversations in a closed loop, with the model's own replies in the history (DASC App. C.3).

    Means and 95th percentiles are over all requests of a run, hits and misses; then over runs.
    """
    work = workload(trace, preset, recording, tokenizer)
    if output is not None:
        _require_writable(output)
    wanted = None if seeds is None else tuple(measuring.numbers(seeds, "--seeds"))
    served = asyncio.run(_served(url, model, api_key, stall))
    frozen = work.trace(served.name)
    _check_context(frozen, served, work.smaller)
    results = Results(frozen, url, arm, clients, server_limit, served.name)
    failure = asyncio.run(
        _measure(results, wanted or frozen.seeds, temperature, ignore_eos, flush=flush, stall=stall, key=api_key)
    )
    facts = results.facts(failure)
    if as_json:
        typer.echo(json.dumps({name: value for name, value in facts.items() if name != "requests"}, indent=2))
    elif results.runs:
        measuring.show(results.table())
    for note in results.notes():
        typer.echo(f"note: {note}", err=True)
    if output is not None:
        _write(output, facts)
    if failure is not None:
        raise failure


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    app.add_typer(bench, name="bench")


def _require_writable(output: Path) -> None:
    """Say before hours are spent that what they give cannot be written."""
    try:
        place = output if output.exists() else output.parent
        is_usable = os.access(place, os.W_OK) and place.is_dir() == (place != output)
    except OSError:
        is_usable = False
    if not is_usable:
        raise ConfigError(f"-o is {output}, where no file can be written: name one in a directory that exists")


def _write(output: Path, facts: dict[str, Any]) -> None:
    """Write the results, which are shown already. Not by replacing the file: it may be a device."""
    try:
        output.write_text(json.dumps(facts, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    except OSError as error:
        ended = "" if facts["failure"] is None else f"; and the runs ended early: {facts['failure']}"
        raise ConfigError(f"{output} cannot be written: {error.strerror or error}{ended}") from error


async def _served(url: str, model: str | None, key: str | None, stall: float) -> ServedModel:
    """The model of that name, or the server's first one."""
    from holdover.evaluation.serve.endpoint import connect

    async with connect(url, key=key, clients=1, stall=stall) as endpoint:
        return await endpoint.model(model)


def _check_context(trace: Trace, served: ServedModel, smaller: str) -> None:
    """Refuse now what the server would refuse in the middle of a run."""
    turns = [turn for dialogue in trace.dialogues for turn in dialogue.turns]
    longest = max((turn.prompt_tokens + turn.max_tokens for turn in turns), default=0)
    if served.context is not None and longest > served.context:
        raise ConfigError(
            f"a request takes up to {longest:,} tokens with its reply, but {served.name} is served with a context of "
            f"{served.context:,}: {smaller}, or serve it with a longer one"
        )


async def _measure(
    results: Results,
    seeds: Sequence[int],
    temperature: float,
    ignore_eos: bool,
    *,
    flush: bool,
    stall: float,
    key: str | None,
) -> EndpointError | None:
    """Make every run, until one fails; what failed."""
    from holdover.evaluation.serve.drive import Load
    from holdover.evaluation.serve.endpoint import connect

    async with connect(results.url, key=key, clients=results.clients, stall=stall) as endpoint:
        load = Load(results.model, results.clients, temperature, ignore_eos)
        err = measuring.console()
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=err, disable=not err.is_terminal) as bars:
            for seed in seeds:
                task = bars.add_task(f"seed {seed}", total=results.trace.num_requests)
                failure = await _run(endpoint, results, load, seed, flush, lambda task=task: bars.advance(task))  # type: ignore[misc]
                if failure is not None:
                    return failure
    return None


async def _run(
    endpoint: Endpoint, results: Results, load: Load, seed: int, flush: bool, advance: Callable[[], None]
) -> EndpointError | None:
    from holdover.evaluation.serve.counters import read_counters
    from holdover.evaluation.serve.drive import drive

    run = Run(seed)

    def done(one: Measured) -> None:
        if not run.measured:
            results.runs.append(run)
        run.measured.append(one)
        advance()

    try:
        run.is_cold = flush and await endpoint.flush()
        before = read_counters(await endpoint.metrics())
        failure = await drive(endpoint, results.trace, load, seed, done)
        after = read_counters(await endpoint.metrics()) if failure is None else None
    except EndpointError as error:
        return error
    if before is not None and after is not None:
        run.counters = after.since(before)
    return failure
