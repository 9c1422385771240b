"""``holdover simulate``: what the cache would do for a trace, and at which operating point it does best."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args

import typer

from holdover.cli import loading, measuring
from holdover.cli.errors import Debug
from holdover.cli.port import behind_port, check_server
from holdover.errors import ConfigError
from holdover.report.tables import Table

if TYPE_CHECKING:
    from holdover.engine.options import EngineOptions
    from holdover.evaluation.simulate.costs import Costs
    from holdover.evaluation.simulate.points import Point
    from holdover.evaluation.simulate.simulate import Prediction
    from holdover.evaluation.simulate.work import Work

    Found = tuple[Point, Prediction | None, str]

Name = TypeVar("Name", bound=str)


def simulate(
    trace: Annotated[
        Path | None, typer.Argument(help="Frozen trace, as holdover trace writes it, or a trace of block hashes.")
    ] = None,
    costs: Annotated[Path, typer.Option(help="What the model costs: measured by --measure.")] = Path("costs.json"),
    measure: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Measure a model on this machine, write --costs, and leave.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Model; the one that a frozen trace was made for if unset.")] = None,
    requests: Annotated[int | None, typer.Option(min=1, help="Block hashes: requests to take; all if unset.")] = None,
    block: Annotated[int | None, typer.Option(min=1, help="Block hashes: tokens of a block; 512 if unset.")] = None,
    budget: Annotated[str, typer.Option(help="Recurrent state, live and cached, such as 512MiB.")] = "64MiB",
    kv_budget: Annotated[str | None, typer.Option(help="Keys and values; as much as the whole trace if unset.")] = None,
    clients: Annotated[int, typer.Option(min=1, help="Conversations under way at a time.")] = 16,
    max_running: loading.MaxRunning = 16,
    chunk_size: Annotated[
        int | None,
        typer.Option(
            help="Most prompt tokens of one forward while other requests wait; as it was measured with if unset, and "
            "under --measure the engine's own default."
        ),
    ] = None,
    w_max: measuring.Cutoffs = "16,64,128,512",
    elements: Annotated[str, typer.Option("--element", help="full, bfloat16, int8, with commas.")] = "full,int8",
    refreshes: Annotated[str, typer.Option("--refresh", help="none, suffix, with commas.")] = "none,suffix",
    evictions: Annotated[str, typer.Option("--eviction", help="lru, cost, coverage, with commas.")] = "cost",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
    device: loading.Device = "auto",
    dtype: loading.Dtype = "auto",
    threads: loading.Threads = None,
    debug: Debug = False,
) -> None:
    """Predict hit rate and latency for a trace at each operating point, without running the model.

    The engine's own loop and cache run on pools that have sizes and no memory; forwards, restores and the server's work
    take the time that was measured for them.

    --measure heeds --costs, --max-running, --chunk-size, --device, --dtype and --threads; the last three are for it
    alone.
    """
    if measure is not None:
        _measure(measure, costs, dtype, device, threads, max_running, chunk_size)
        return
    if trace is None:
        raise ConfigError("give a trace to simulate, or --measure MODEL to measure costs")
    from holdover.engine.memory import parse_bytes
    from holdover.evaluation.simulate.costs import read_costs
    from holdover.evaluation.simulate.points import grid
    from holdover.evaluation.simulate.work import read_work
    from holdover.prefix.eviction import Eviction
    from holdover.retention import Element, RefreshPolicy

    points = list(
        grid(
            measuring.numbers(w_max, "--wmax"),
            _names(elements, "--element", get_args(Element)),
            _names(refreshes, "--refresh", get_args(RefreshPolicy)),
            _names(evictions, "--eviction", get_args(Eviction)),
        )
    )
    priced = read_costs(costs)
    work = read_work(trace, model, priced.dtype, requests, block)
    if work.passed_over:
        typer.echo(work.passed_over, err=True)
    if caution := _caution(priced, max_running):
        typer.echo(caution, err=True)
    simulation = _Simulation(
        work,
        priced,
        state_budget=parse_bytes(budget),
        kv_budget=None if kv_budget is None else parse_bytes(kv_budget),
        max_running=max_running,
        chunk_size=priced.chunk_size if chunk_size is None else chunk_size,
    )
    found = [simulation.run(point, clients) for point in measuring.tracked(points, len(points), "simulating")]
    best = min((one for one in found if one[1] is not None), key=lambda one: _ttft(one[1]), default=None)
    if as_json:
        typer.echo(json.dumps(_facts(work, priced, found, best), indent=2, allow_nan=False))
        return
    measuring.show(_table(found))
    if best is not None:
        typer.echo(f"least mean TTFT: {best[0].name}, eviction {best[0].eviction}")
        typer.echo("what it does to answers is not predicted: holdover calibrate measures that")


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command("simulate")(simulate)


class _Simulation:
    """Everything that the points of a grid share."""

    def __init__(
        self,
        work: Work,
        costs: Costs,
        *,
        state_budget: int,
        kv_budget: int | None,
        max_running: int,
        chunk_size: int,
    ) -> None:
        from holdover.engine.options import EngineOptions
        from holdover.store import KVPool

        self.work, self.costs = work, costs
        lasts = (dialogue[-1] for dialogue in work.dialogues)
        rows = sum(len(last.prompt) + len(last.reply) for last in lasts) + max_running * chunk_size
        self.base: EngineOptions = EngineOptions(
            state_budget=state_budget,
            kv_budget=kv_budget or KVPool.bytes_for(work.layout.kv, rows),
            max_running=max_running,
            chunk_size=chunk_size,
            decode="dense",
        )

    def run(self, point: Point, clients: int) -> Found:
        """One point; without a prediction where the budget is too small for it, and why."""
        from holdover.evaluation.simulate.simulate import simulate

        work, options = self.work, point.options(self.base, self.work.decay)
        try:
            return point, simulate(work.layout, options, work.dialogues, clients=clients, costs=self.costs), ""
        except ConfigError as error:
            return point, None, str(error)


def _caution(costs: Costs, max_running: int) -> str | None:
    """What the costs do not say about a server that runs so many requests together."""
    from holdover.evaluation.simulate.costs import ServingCost

    together = costs.serving.together
    if costs.serving == ServingCost():
        return (
            "the server's work is not counted, for the costs have none: holdover simulate --measure MODEL measures it "
            "for models with a chat template"
        )
    if together not in (0, max_running):
        return (
            f"the server's work for a token was measured with {together} requests together, and --max-running is "
            f"{max_running}: measure with that to be sure"
        )
    return None


def _measure(
    model: str, path: Path, dtype: str, device: str, threads: int | None, max_running: int, chunk_size: int | None
) -> None:
    check_server()
    with loading.progress(measuring.console(), f"loading {model}"):
        engine = loading.load_engine(
            model, dtype=dtype, device=device, threads=threads, max_running=max_running, chunk_size=chunk_size
        )
    from holdover.evaluation.simulate.costs import write_costs
    from holdover.evaluation.simulate.serving import measure_served, obstacle

    with loading.progress(measuring.console(), "measuring"), behind_port(engine, model) as (shared, url):
        found = measure_served(shared, url)
    write_costs(found, path)
    typer.echo(f"wrote {path}: a prefill of 512 tokens {found.prefill.ms(512, 512 * 513 // 2):.3g} ms")
    if (why := obstacle(engine)) is not None:
        typer.echo(f"the server's work was not measured: {why}", err=True)
        return
    before, token = found.serving.before_ms(512), found.serving.token
    typer.echo(f"the server adds {before:.3g} ms before such a prefill, and {token:.3g} ms for each token of a reply")


def _names(text: str, option: str, known: Sequence[Name]) -> list[Any]:
    parts = [part.strip() for part in text.split(",")]
    if unknown := [part for part in parts if part not in known]:
        raise ConfigError(f"{option} has {unknown[0]!r}; wanted any of {', '.join(known)}")
    return list(dict.fromkeys(parts))


def _ttft(prediction: Prediction | None) -> float:
    assert prediction is not None
    return prediction.ttft_mean_ms


def _facts(work: Work, costs: Costs, found: Sequence[Found], best: Found | None) -> dict[str, Any]:
    rows = [
        asdict(point) | {"name": point.name} | ({"error": why} if one is None else asdict(one))
        for point, one, why in found
    ]
    return {
        "trace": work.digest,
        "costs": asdict(costs),
        "rows": rows,
        "best": None if best is None else {"name": best[0].name} | asdict(best[0]),
    }


def _table(found: Sequence[Found]) -> Table:
    columns = ("point", "eviction", "native", "packed", "hit", "TTFT", "P95", "E2E", "evicted", "replayed")
    return Table("times in ms", columns, tuple(_row(point, one, why) for point, one, why in found))


def _row(point: Point, one: Prediction | None, why: str) -> tuple[str, ...]:
    if one is None:
        return (point.name, point.eviction, why, *[""] * 7)
    return (
        point.name,
        point.eviction,
        f"{one.native_slots:,}",
        f"{one.packed_slots:,}",
        f"{one.hit:.3f}",
        f"{one.ttft_mean_ms:,.1f}",
        f"{one.ttft_p95_ms:,.1f}",
        f"{one.e2e_mean_ms:,.1f}",
        f"{one.states_evicted:,}",
        f"{one.refresh_tokens:,}",
    )
