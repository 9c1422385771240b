"""``holdover eval``: tasks of the LM evaluation harness on a model and its cache, and the papers' protocols."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from holdover.cli import combinations, composed, deferred, harness, loading, measuring, warm_replay
from holdover.cli import preset as presets
from holdover.cli.errors import Debug
from holdover.errors import ConfigError
from holdover.evaluation.journal import refuse_existing

if TYPE_CHECKING:
    from holdover.engine.engine import Engine

ProtocolName = Literal["harness", "warm-replay", "composed", "deferred", "combinations"]

_PREFIX, _FOLLOWING = 512, 64


def evaluate(
    model: loading.Model,
    preset: presets.Preset = None,
    tasks: Annotated[str, typer.Option(help="Tasks of lm-eval, with commas.")] = "",
    limit: Annotated[int | None, typer.Option(min=1, help="Documents of each task, or problems; all if unset.")] = None,
    lengths: Annotated[
        str | None, typer.Option(help="Tokens of generated prompts (RULER), with commas; what fits if unset.")
    ] = None,
    chat: Annotated[bool, typer.Option("--chat/--no-chat", help="Ask as a user, through the chat template.")] = False,
    include: Annotated[Path | None, typer.Option(help="Directory of further tasks in lm-eval's YAML.")] = None,
    plan: loading.Plan = None,
    refresh: loading.Refresh = None,
    element: loading.ElementOption = None,
    protocol: Annotated[
        ProtocolName,
        typer.Option(
            help="harness: tasks, once; warm-replay: problems, replayed in every arm; composed: questions over chunks, "
            "from every initial state; deferred: decode from a log beside dense decode; combinations: checkpoints, "
            "logs and drafts together, over many restores."
        ),
    ] = "harness",
    problems: Annotated[Path | None, typer.Option(help="Problems of a protocol, a JSON object a line.")] = None,
    text: Annotated[Path | None, typer.Option(help="Held-out text, which a protocol cuts into pieces.")] = None,
    prefix: Annotated[int, typer.Option(min=2, help="Cached tokens of each piece of --text.")] = _PREFIX,
    following: Annotated[int, typer.Option(min=1, help="Scored tokens behind them.")] = _FOLLOWING,
    arms: Annotated[str, typer.Option(help="Of dense, nr, wr, int8, nr+int8, wr+int8 and, in warm-replay, random.")] = (
        "dense,nr,wr,int8,nr+int8,random"
    ),
    w_max: measuring.Cutoffs = "16,64",
    replays: Annotated[int, typer.Option(min=1, help="Scored replays of every problem.")] = 1,
    block: Annotated[int, typer.Option(min=1, help="Problems that are cached together.")] = 64,
    temperature: Annotated[float, typer.Option(min=0, help="Of the replays; 0 for greedy.")] = 0.0,
    controlled: Annotated[
        bool, typer.Option("--controlled", help="Stop where a block breaks the residency conditions of App. C.2.")
    ] = False,
    selectors: composed.Selectors = composed.SELECTORS,
    initialisers: composed.Initialisers = composed.INITIALISERS,
    ratios: composed.Ratios = composed.RATIOS,
    seam_windows: composed.SeamWindows = composed.SEAM_WINDOWS,
    conv_window: composed.ConvWindow = "stream",
    prompts: composed.Prompts = composed.PROMPTS,
    seed: composed.Seed = 0,
    chunks: composed.Chunks = composed.CHUNKS,
    tokens: composed.Tokens = composed.TOKENS,
    steps: deferred.Steps = deferred.STEPS,
    intervals: deferred.Intervals = deferred.INTERVALS,
    logs: deferred.Logs = deferred.LOGS,
    restores: combinations.Restores = combinations.RESTORES,
    merge_interval: loading.MergeInterval = None,
    compose: combinations.Compose = True,
    json_path: Annotated[
        Path | None, typer.Option("--json", help="Write the figures there, and finished work beside it.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the finished work beside --json.")] = False,
    max_running: loading.MaxRunning = 16,
    dtype: loading.Dtype = "auto",
    device: loading.Device = "auto",
    threads: loading.Threads = None,
    debug: Debug = False,
) -> None:
    """Evaluate a model whose states are cached as a plan says, or compare ways of caching them."""
    if resume and json_path is None:
        raise ConfigError("--resume goes on with what an earlier run left beside its --json: name that file")
    presets.require_problems(preset, problems)
    journal = None if json_path is None else _journal(json_path, resume)
    if protocol == "harness":
        names = _names(tasks)
        if not names:
            raise ConfigError(
                "give --tasks, such as niah_single_1, or --protocol warm-replay with --problems or --text"
            )
        caching = loading.Caching(plan=plan, refresh=refresh, element=element)
        parts = harness.find(model, names, lengths, include)
        with _engine(model, caching, dtype, device, threads, max_running) as engine:
            facts = harness.run(engine, parts, limit, chat, journal, resume)
    elif protocol == "composed":
        if text is not None:
            raise ConfigError("the composed protocol asks questions: give --problems, or neither to have them drawn")
        design = composed.design_of(selectors, initialisers, ratios, seam_windows, conv_window)
        drawing = composed.Drawing(prompts, seed, chunks, tokens)
        loaded = measuring.load_model(model, dtype, device, threads)
        facts = composed.run(loaded, composed.problems_of(loaded, problems, limit, drawing), design, journal, resume)
    elif protocol == "deferred":
        _require_subject(protocol, problems, text)
        sizes = measuring.numbers(intervals, "--intervals")
        loaded = measuring.load_model(model, dtype, device, threads)
        asked = warm_replay.problems_of(loaded, problems, text, prefix, following, limit)
        facts = deferred.run(loaded, asked, sizes, _names(logs), steps, max_running, journal, resume)
    elif protocol == "combinations":
        _require_subject(protocol, problems, text)
        cutoffs = measuring.numbers(w_max, "--wmax")
        loaded = measuring.load_model(model, dtype, device, threads)
        cut = combinations.Cut(prefix, following, restores, limit, compose)
        subject = combinations.subject_of(loaded, problems, text, cut)
        plans = combinations.plans_of(loaded, plan, cutoffs)
        facts = combinations.run(loaded, subject, _names(arms), plans, merge_interval, journal, resume)
    else:
        _require_subject(protocol, problems, text)
        kinds = _names(arms)
        cutoffs = measuring.numbers(w_max, "--wmax")
        loaded = measuring.load_model(model, dtype, device, threads)
        from holdover.evaluation.protocols.warm_replay import Schedule

        schedule = Schedule(replays, block, max_running, temperature, controlled)
        asked = warm_replay.problems_of(loaded, problems, text, prefix, following, limit)
        facts = warm_replay.run(loaded, asked, warm_replay.arms_at(loaded, kinds, cutoffs), schedule, journal, resume)
    if json_path is not None:
        measuring.write(json_path, facts)


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command("eval")(evaluate)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _require_subject(protocol: str, problems: Path | None, text: Path | None) -> None:
    if (problems is None) == (text is None):
        raise ConfigError(f"the {protocol} protocol needs either --problems or --text")


def _journal(json_path: Path, resume: bool) -> Path:
    """Where finished work is kept. That it, or the figures, cannot be written is said before hours are spent."""
    if json_path.is_dir() or not json_path.parent.is_dir() or not os.access(json_path.parent, os.W_OK):
        raise ConfigError(f"--json is {json_path}, where no file can be written: name one in a directory that exists")
    path = json_path.with_suffix(".answers.jsonl")
    refuse_existing(path, resume=resume)
    return path


def _engine(
    model: str, caching: loading.Caching, dtype: str, device: str, threads: int | None, max_running: int
) -> Engine:
    """An engine that keeps what `replayable` says; the plan is found first, so options are set on a second one."""
    with loading.progress(measuring.console(), f"loading {model}"):
        first = loading.load_engine(
            model, dtype=dtype, device=device, threads=threads, max_running=max_running, caching=caching
        )
    from holdover.engine.engine import Engine
    from holdover.evaluation.residency import replayable

    first.close()
    typer.echo(first.planned.note, err=True)
    return Engine(first.loaded, replayable(first.options))
