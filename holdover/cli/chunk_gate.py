"""``holdover chunks calibrate``: measure on real text what composing costs, and record the way that is worth it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated

import typer

from holdover import __version__
from holdover.cli import loading, measuring
from holdover.cli.chunk_diagnosis import Chunks, Initialisers, Selectors, Tokens, check_names, names
from holdover.cli.errors import Debug
from holdover.errors import ConfigError, GateError
from holdover.report.tables import Table

if TYPE_CHECKING:
    from holdover.engine.chunks.gate import ChunkGate, ChunkPoint
    from holdover.engine.hf.loader import Loaded
    from holdover.evaluation.chunks.case import Cut
    from holdover.evaluation.chunks.sweep import Choice, Measured

_POINTS = (
    "selector",
    "initialiser",
    "ratio",
    "window",
    "run again",
    "mean KL",
    "95 % interval",
    "P95 KL",
    "at first",
    "tokens run",
    "ms",
    "",
)


def calibrate(
    model: loading.Model,
    text: measuring.Text,
    budget: Annotated[float, typer.Option(help="Largest acceptable P95 of the KL to a full prefill, in nats a token.")],
    contexts: Annotated[int, typer.Option(min=1, help="Contexts, cut from the text one after the other.")] = 50,
    chunks: Chunks = 4,
    tokens: Tokens = 512,
    query: Annotated[int, typer.Option(min=1, help="Tokens of the query behind a context.")] = 16,
    following: Annotated[int, typer.Option(min=1, help="Tokens behind the query that are compared.")] = 64,
    selector: Selectors = "none,cacheblend,epic,prophetkv,seam",
    initialiser: Initialisers = "last,exact,seams",
    ratios: Annotated[str, typer.Option(help="Shares of the chunks' tokens to recompute, with commas.")] = (
        "0.05,0.1,0.2,0.4"
    ),
    window: Annotated[str, typer.Option(help="stream, context or both, with a comma.")] = "stream,context",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write; in the directory of plans if unset.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    dtype: loading.Dtype = "auto",
    device: loading.Device = "auto",
    threads: loading.Threads = None,
    debug: Debug = False,
) -> None:
    """Find the cheapest way to compose prompts that stays within a budget, and write a gate with what was measured.

    If no way meets the budget, nothing is written, and a server prefills such prompts in full.
    """
    selectors, initialisers = names(selector, "--selector"), names(initialiser, "--initialiser")
    windows, shares = names(window, "--window"), measuring.shares(ratios, "--ratios")
    if not budget >= 0:
        raise ConfigError(f"--budget is {budget:g}; wanted nats, at least 0")
    for share in shares:
        for one in windows:
            check_names(selectors, [name for name in initialisers if name != "seams"], share, one)
    from holdover.engine.chunks.gate import user_gate, write_gate
    from holdover.evaluation.chunks.case import Cut
    from holdover.evaluation.chunks.sweep import choose, ways
    from holdover.evaluation.retention.prefixes import read_text

    content = read_text(text)
    loaded = measuring.load_model(model, dtype, device, threads)
    assert loaded.files is not None
    path = user_gate(loaded.model_digest) if output is None else output
    if path.exists() and not force:
        raise GateError(f"{path} exists: choose another file with -o, or overwrite it with --force")
    cut = Cut(contexts, chunks, tokens, query, following)
    measured = _measure(loaded, content, cut, ways(selectors, initialisers, shares, windows))  # type: ignore[arg-type]
    points = [samples.point() for samples in measured.samples]
    chosen = choose(points, budget)
    measuring.show(_point_table(points, chosen, budget))
    if chosen is None:
        best = min(point.p95_kl for point in points)
        raise GateError(
            f"nothing meets the budget of {budget:g} nats: the best P95 is {best:.3g}; nothing was written. Try higher "
            "--ratios, or a larger --budget"
        )
    gate = _gate(loaded, content, budget, cut, measured, chosen, points)
    write_gate(gate, path)
    typer.echo(
        f"chose selector {chosen.selector}, initialiser {chosen.initialiser}, ratio {chosen.ratio:g}, window "
        f"{chosen.window}: {chosen.ms:.0f} ms where a full prefill takes {gate.full_ms:.0f}; wrote {path}"
    )


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command("calibrate")(calibrate)


def _measure(loaded: Loaded, text: str, cut: Cut, choices: Sequence[Choice]) -> Measured:
    from holdover.evaluation.chunks.sweep import measure

    cases = cut.cases(loaded.tokenizer.encode(text), loaded.host.layout.max_context)
    steps = measure(loaded.host, cases, choices)
    *_, measured = measuring.tracked(steps, cut.contexts, f"composing {cut.contexts} contexts in {len(choices)} ways")
    return measured


def _gate(
    loaded: Loaded,
    text: str,
    budget: float,
    cut: Cut,
    measured: Measured,
    chosen: ChunkPoint,
    points: Sequence[ChunkPoint],
) -> ChunkGate:
    import torch

    from holdover.engine.chunks.gate import ChunkGate

    return ChunkGate(
        model_digest=loaded.model_digest,
        dtype=loaded.dtype,
        text_digest=hashlib.sha256(text.encode()).hexdigest(),
        budget=budget,
        contexts=cut.contexts,
        chunks=cut.chunks,
        tokens=cut.tokens,
        query=cut.query,
        following=cut.following,
        full_ms=1e3 * median(measured.full_seconds),
        versions={"holdover": __version__, "torch": torch.__version__},
        chosen=chosen,
        sweep=tuple(points),
    )


def _point_table(points: Sequence[ChunkPoint], chosen: ChunkPoint | None, budget: float) -> Table:
    rows = [
        (
            point.selector,
            point.initialiser,
            f"{point.ratio:g}",
            point.window,
            f"{100 * point.recomputed:.1f} %",
            f"{point.mean_kl:.2g}",
            f"{point.low:.2g} to {point.high:.2g}",
            f"{point.p95_kl:.2g}",
            f"{point.first_kl:.2g}",
            f"{point.cost:.0f}",
            f"{point.ms:.0f}",
            "chosen" if point is chosen else "passes" if point.p95_kl <= budget else "",
        )
        for point in points
    ]
    return Table("", _POINTS, tuple(rows))
