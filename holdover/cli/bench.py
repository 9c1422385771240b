"""``holdover bench serve``: put conversations to a running server and measure what its clients see."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from holdover.cli import measuring
from holdover.cli.errors import Debug
from holdover.cli.workload import workload
from holdover.errors import ConfigError, EndpointError
from holdover.report.tables import Table

if TYPE_CHECKING:
    from holdover.evaluation.serve.counters import Counters
    from holdover.evaluation.serve.drive import Load, Measured
    from holdover.evaluation.serve.endpoint import Endpoint, Served
    from holdover.evaluation.serve.summary import Summary
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
    wanted = None if seeds is None else tuple(measuring.numbers(seeds, "--seeds"))
    served = asyncio.run(_served(url, model, api_key, stall))
    frozen = work.trace(served.name)
    _check_context(frozen, served)
    results = Results(frozen, url, arm, clients, server_limit, served.name)
    failure = asyncio.run(
        _measure(results, wanted or frozen.seeds, temperature, ignore_eos, flush=flush, stall=stall, key=api_key)
    )
    facts = results.facts(failure)
    if output is not None:
        output.write_text(json.dumps(facts, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    if as_json:
        typer.echo(json.dumps({name: value for name, value in facts.items() if name != "requests"}, indent=2))
    elif results.runs:
        measuring.show(results.table())
    for note in results.notes():
        typer.echo(f"note: {note}", err=True)
    if failure is not None:
        raise failure


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    app.add_typer(bench, name="bench")


@dataclass
class Run:
    """One pass over the trace.

    Attributes:
        seed: of its requests.
        measured: those that were answered.
        counters: what the server counted meanwhile, or None.
        is_cold: whether it began with an empty cache, as far as is known.
    """

    seed: int
    measured: list[Measured] = field(default_factory=list)
    counters: Counters | None = None
    is_cold: bool = False


@dataclass
class Results:
    """Everything that was measured.

    Attributes:
        trace: what was sent.
        url: to whom.
        arm: what it is called.
        clients: conversations under way at a time.
        server_limit: requests that the server runs together, as the user says.
        model: name that it serves.
        runs: those of which a request was answered.
    """

    trace: Trace
    url: str
    arm: str
    clients: int
    server_limit: int | None
    model: str
    runs: list[Run] = field(default_factory=list)

    def facts(self, failure: EndpointError | None) -> dict[str, Any]:
        """As one JSON object: a row for each run, and every request."""
        return {
            "trace": self.trace.digest,
            "preset": self.trace.preset,
            "url": self.url,
            "complete": failure is None,
            "failure": None if failure is None else str(failure),
            "rows": [self._row(run) for run in self.runs],
            "mean": None if (whole := self._mean()) is None else asdict(whole),
            "requests": [{"seed": run.seed} | asdict(one) for run in self.runs for one in run.measured],
        }

    def table(self) -> Table:
        """One row for each run, and their mean."""
        columns = ("seed", "requests", "hit", "TTFT", "P95", "E2E", "P95", "slots", "evicted", "restored")
        rows = [(str(run.seed), *_cells(_summary(run)), *_counted(run.counters)) for run in self.runs]
        mean = self._mean()
        if mean is not None and len(self.runs) > 1:
            rows.append(("mean", *_cells(mean), "", "", ""))
        title = f"{self.arm or self.model}, {self.clients} clients, times in ms"
        return Table(title, columns, tuple(rows))

    def notes(self) -> list[str]:
        """What a reader of the figures has to know."""
        every = [one for run in self.runs for one in run.measured]
        found = []
        if any(one.prompt_tokens is None for one in every):
            found.append("the server sends no usage: hits are unknown")
        elif any(one.cached_tokens is None for one in every):
            found.append("the server does not say how many prompt tokens were cached: hits are unknown")
        if others := sum(one.is_as_frozen is False for one in every):
            found.append(f"{others} first prompts have other lengths than the trace says: is it of another model?")
        if any(not run.is_cold for run in self.runs[1:]):
            found.append("the server's cache was not emptied between runs: later ones find what earlier ones left")
        return found

    def _row(self, run: Run) -> dict[str, Any]:
        counters = {} if run.counters is None else asdict(run.counters)
        named = {"model": self.model, "arm": self.arm, "concurrency": self.clients, "server_limit": self.server_limit}
        return named | {"seed": run.seed, "slots": None} | asdict(_summary(run)) | counters

    def _mean(self) -> Summary | None:
        from holdover.evaluation.serve.summary import mean_of

        return mean_of([_summary(run) for run in self.runs]) if self.runs else None


async def _served(url: str, model: str | None, key: str | None, stall: float) -> Served:
    """The model of that name, of which nothing is asked; the server's first one if None."""
    from holdover.evaluation.serve.endpoint import Served, connect

    if model is not None:
        return Served(model)
    async with connect(url, key=key, clients=1, stall=stall) as endpoint:
        return await endpoint.model()


def _check_context(trace: Trace, served: Served) -> None:
    """Refuse now what the server would refuse in the middle of a run."""
    turns = [turn for dialogue in trace.dialogues for turn in dialogue.turns]
    longest = max((turn.prompt_tokens + turn.max_tokens for turn in turns), default=0)
    if served.context is not None and longest > served.context:
        raise ConfigError(
            f"a request takes up to {longest:,} tokens with its reply, but {served.name} is served with a context of "
            f"{served.context:,}: take a smaller --preset, or serve it with a longer one"
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


def _summary(run: Run) -> Summary:
    from holdover.evaluation.serve.summary import summarise

    return summarise(run.measured)


def _cells(one: Summary) -> tuple[str, ...]:
    times = (one.ttft_mean_ms, one.ttft_p95_ms, one.e2e_mean_ms, one.e2e_p95_ms)
    return (f"{one.requests:g}", "-" if one.hit is None else f"{one.hit:.3f}", *(f"{ms:,.1f}" for ms in times))


def _counted(counters: Counters | None) -> tuple[str, str, str]:
    if counters is None:
        return "-", "-", "-"
    return f"{counters.slots:,}", f"{counters.states_evicted:,}", f"{sum(counters.restores.values()):,}"
