"""``holdover chunks diagnose``: how far constructed states are off, and what is still answered over them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from holdover.cli import loading, measuring
from holdover.cli.errors import Debug
from holdover.errors import ConfigError, RequestError
from holdover.report.tables import Table

if TYPE_CHECKING:
    from holdover.arch.layout import ModelLayout
    from holdover.chunks import StateErrors
    from holdover.engine.hf.loader import Loaded
    from holdover.evaluation.chunks.case import Case
    from holdover.evaluation.chunks.score import Answers
    from holdover.report.pictures import Picture

    Draw = Callable[[Mapping[str, StateErrors], ModelLayout], Picture]

# as `holdover.engine.chunks` has it, whose import takes torch's seconds
WindowName = Literal["stream", "context"]

Selectors = Annotated[str, typer.Option("--selector", help="Selectors of recomputed tokens, with commas.")]
Initialisers = Annotated[str, typer.Option("--initialiser", help="Initial recurrent states, with commas.")]
Chunks = Annotated[int, typer.Option("--chunks", min=1, help="Chunks of a context.")]
Tokens = Annotated[int, typer.Option("--tokens", min=1, help="Tokens of a chunk.")]


def diagnose(
    model: loading.Model,
    text: Annotated[
        Path | None, typer.Option("--text", help="Text to cut contexts from; records that are drawn if unset.")
    ] = None,
    contexts: Annotated[int, typer.Option(min=1, help="Contexts whose states are compared.")] = 8,
    chunks: Chunks = 4,
    tokens: Tokens = 128,
    initialiser: Initialisers = "last,random,exact,seams,zero",
    as_json: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the figures.")] = None,
    png: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a picture of the errors.")] = None,
    score: Annotated[bool, typer.Option("--score", help="Also ask questions over composed contexts.")] = False,
    prompts: Annotated[int, typer.Option(min=1, help="Questions.")] = 200,
    selector: Selectors = "cacheblend,epic,prophetkv,seam",
    ratio: Annotated[float, typer.Option(min=0, max=1, help="Share of the chunks' tokens to recompute.")] = 0.2,
    window: Annotated[WindowName, typer.Option(help="What recomputed tokens see in their conv windows.")] = "stream",
    dtype: loading.Dtype = "auto",
    device: loading.Device = "auto",
    threads: loading.Threads = None,
    debug: Debug = False,
) -> None:
    """Show how far constructed recurrent states are from the true ones, layer by layer (LinearKV, Fig. 3).

    With --score, every selector meets every initial state on the same recomputed positions, between a full prefill and
    no recomputation at all; answers are greedy.
    """
    initialisers, selectors = names(initialiser, "--initialiser"), ["none", *names(selector, "--selector")]
    check_names(selectors, initialisers, ratio)
    draw = None if png is None else _drawing()
    from holdover.evaluation.retention.prefixes import read_text

    content = None if text is None else read_text(text)
    loaded = measuring.load_model(model, dtype, device, threads)
    errors = _errors(loaded, _contexts(loaded, content, contexts, chunks, tokens), initialisers)
    measuring.show(_error_table(errors, contexts, chunks, tokens))
    facts: dict[str, Any] = {"model": model, "contexts": contexts, "chunks": chunks, "tokens": tokens}
    facts["errors"] = {name: {str(i): error for i, error in one.layers.items()} for name, one in errors.items()}
    if score:
        answers = _score(loaded, prompts, chunks, tokens, selectors, initialisers, ratio, window)
        rows = _score_rows(answers)
        measuring.show(_score_table(rows, prompts, ratio, window))
        facts["score"] = {"prompts": prompts, "ratio": ratio, "window": window, "rows": rows}
    try:
        if as_json is not None:
            as_json.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
        if png is not None and draw is not None:
            png.write_bytes(draw(errors, loaded.host.layout).png)
    except OSError as error:
        raise ConfigError(f"{error.filename} cannot be written: {error.strerror or error}") from error


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command("diagnose")(diagnose)


def check_names(selectors: Sequence[str], initialisers: Sequence[str], ratio: float, window: str = "stream") -> None:
    """Refuse now, with a ConfigError, what composing would refuse after the model was loaded."""
    from holdover.engine.chunks.gate import extras_for
    from holdover.engine.chunks.request import check_choice

    try:
        for selector in selectors:
            for initialiser in initialisers:
                check_choice(selector, initialiser, ratio, window, extras_for(initialisers))
    except RequestError as error:
        raise ConfigError(str(error)) from None


def names(text: str, option: str) -> list[str]:
    """Names separated by commas, each once.

    Raises:
        ConfigError: one is empty.
    """
    found = list(dict.fromkeys(part.strip() for part in text.split(",")))
    if not all(found):
        raise ConfigError(f"{option} is {text!r}; wanted names with commas")
    return found


def _drawing() -> Draw:
    """What draws errors; if it cannot, that is said before the model is loaded."""
    from holdover.report.chunks import draw_state_errors

    return draw_state_errors


def _contexts(loaded: Loaded, text: str | None, contexts: int, chunks: int, tokens: int) -> list[Case]:
    """Contexts of chunks alone: pieces of the text, or documents of records."""
    from holdover.evaluation.chunks.case import Case, Cut
    from holdover.evaluation.chunks.recall import draw

    if text is not None:
        return Cut(contexts, chunks, tokens).cases(loaded.tokenizer.encode(text), loaded.host.layout.max_context)
    drawn = draw(loaded.tokenizer, loaded.end_tokens, contexts, chunks=chunks, tokens=tokens)
    return [Case(case.parts[1:], case.query) for case in drawn]


def _errors(loaded: Loaded, cases: Sequence[Case], initialisers: Sequence[str]) -> dict[str, StateErrors]:
    from holdover.evaluation.chunks.diagnose import diagnose, mean_errors

    steps = diagnose(loaded.host, cases, initialisers)
    *_, found = measuring.tracked(steps, len(cases), f"constructing the states of {len(cases)} contexts")
    return {name: mean_errors(errors) for name, errors in found.items()}


def _error_table(errors: Mapping[str, StateErrors], contexts: int, chunks: int, tokens: int) -> Table:
    layers = list(next(iter(errors.values())).layers)
    rows = [(str(layer), *(f"{one.layers[layer]:.2g}" for one in errors.values())) for layer in layers]
    worst = ("worst", *("{1:.2g} (layer {0})".format(*one.worst) for one in errors.values()))
    title = (
        f"Relative error of the constructed state, mean of {contexts} contexts of {chunks} chunks of {tokens} tokens"
    )
    return Table(title, ("layer", *errors), (*rows, worst))


def _score(
    loaded: Loaded,
    prompts: int,
    chunks: int,
    tokens: int,
    selectors: Sequence[str],
    initialisers: Sequence[str],
    ratio: float,
    window: WindowName,
) -> list[Answers]:
    from holdover.evaluation.chunks.recall import draw
    from holdover.evaluation.chunks.score import score

    cases = draw(loaded.tokenizer, loaded.end_tokens, prompts, chunks=chunks, tokens=tokens)
    steps = score(loaded.host, cases, selectors, initialisers, ratio, loaded.end_tokens, window)
    *_, answers = measuring.tracked(steps, prompts, f"asking {prompts} questions")
    if not any(answers[0].right):
        raise ConfigError(
            f"of {prompts} questions a full prefill answers none in the form that the bundled models were trained on: "
            "this score says nothing of this model"
        )
    return answers


def _score_rows(answers: Sequence[Answers]) -> list[dict[str, Any]]:
    from holdover.evaluation.chunks.score import percent_of_full

    rows = []
    for arm in answers:
        percent, low, high = percent_of_full(arm, answers[0])
        facts = {"selector": arm.selector, "initialiser": arm.initialiser, "recomputed": fmean(arm.recomputed)}
        rows.append(facts | {"right": sum(arm.right), "percent": percent, "low": low, "high": high})
    return rows


def _score_table(rows: Sequence[Mapping[str, Any]], prompts: int, ratio: float, window: WindowName) -> Table:
    title = f"{prompts} questions, ratio {ratio:g}, window {window}"
    columns = ("selector", "initialiser", "run again", "right", "% of full", "95 % interval")
    cells = [
        (
            one["selector"],
            one["initialiser"],
            f"{100 * one['recomputed']:.1f} %",
            str(one["right"]),
            f"{one['percent']:.1f}",
            f"{one['low']:.1f} to {one['high']:.1f}",
        )
        for one in rows
    ]
    return Table(title, columns, tuple(cells))
