"""Serve one frozen trace with dense, NR and WR checkpoints, each server within the same state budget.

    python benchmarks/serve.py [--quick] [--models tiny-gdn] [--seconds N] [--journal FILE]
    torchrun --nproc-per-node 2 benchmarks/serve.py --models kimi-linear     (placements)

See README.md beside this file for what each row says. Runs on a CPU or a GPU; servers run one after the other, the most
telling ones first, and what is in the journal already is not measured again.
"""

from __future__ import annotations

import signal
import sys
import tempfile
import time
from argparse import Namespace
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from benchmarks import common, serve_report
from benchmarks.serve_arms import Room, Servers
from benchmarks.serve_flags import arguments
from benchmarks.serve_grid import Scale, Server, Setup, grid, placements, shard
from benchmarks.serve_models import SHAPES, write_model
from benchmarks.serve_traces import PASTED, PRESETS, QUICK, RECORDED, RECORDING, SEEDS, frozen, words
from holdover.cli.loading import join
from holdover.engine.parallel.ranks import Ranks
from holdover.errors import HoldoverError
from holdover.evaluation.journal import Journal
from holdover.evaluation.traces.trace import Trace, write_trace
from holdover.weights.source import resolve

_BUNDLED_ROOM = Room(chunk_size=256, kv_budget=256 << 20, threads=2)
_SHAPED_ROOM = Room(chunk_size=2048, kv_budget=2 << 30, threads=8)


@dataclass(frozen=True)
class Model:
    """A model and what is asked of it.

    Attributes:
        name: what it is called.
        path: bundled model or directory.
        trace: requests.
        scale: how much is measured.
        room: what its servers have alike.
        about: what it is, for the results.
    """

    name: str
    path: str
    trace: Trace
    scale: Scale
    room: Room
    about: dict[str, Any]


def bundled(name: str, source: Path, threads: int, *, quick: bool) -> Model:
    """A model with trained weights, asked a recording's conversations."""
    trace = frozen(name, resolve(name).path, QUICK if quick else PRESETS["small"], source)
    # where arms were predicted to differ, to differ less and to be alike: a miss makes four checkpoints, so that a
    # round of 12 clients wants 48 slots, which one third gives packed ones only (at one sixth no arm has them)
    scale = (
        Scale(6, (2,), (1 / 3,), SEEDS[:1], (64, 16), "int8")
        if quick
        else Scale(12, (4, 2), (1 / 3, 1 / 2, 2 / 3), SEEDS[:2], (64, 16), "int8")
    )
    room = Room(_BUNDLED_ROOM.chunk_size, _BUNDLED_ROOM.kv_budget, threads)
    return Model(name, name, trace, scale, room, {"weights": "trained"})


def shaped(name: str, folder: Path, seeds: tuple[int, ...], recording: Path | None) -> Model:
    """A model of random weights, asked pasted conversations, or a recording's in words that it knows."""
    shape = SHAPES[name]
    known, preset = words(recording), PASTED if recording is None else RECORDED
    path = write_model(name, folder / f"{name}-{preset.name}", known, "cuda" if torch.cuda.is_available() else "cpu")
    trace = frozen(name, path, preset, recording, words_only=True)
    scale = Scale(PASTED.conversations, (32, 16, 8), shape.shares, seeds, shape.windows)
    about = {"weights": "random", "layers": shape.layers, "published_layers": shape.in_full, "note": shape.note}
    return Model(name, str(path), trace, scale, _SHAPED_ROOM, about)


def run(model: Model, options: Namespace, journal: Journal, ends: float, ranks: Ranks | None) -> None:
    """Measure what is not in the journal, until the time is over."""
    with tempfile.TemporaryDirectory() as folder:
        write_trace(model.trace, path := Path(folder) / "trace.jsonl")
        servers = Servers(model.name, model.path, model.trace, path, model.room, model.scale.clients, ranks)
        every = planned(model, ranks)
        for setup, seeds in shard(every, *options.shard):
            missing = [seed for seed in seeds if setup.key(seed) not in journal]
            is_over = time.monotonic() > ends
            if not servers.agreed(bool(missing) and not is_over):
                if missing and servers.leads:
                    common.console.print(
                        f"not measured: {setup.name} at limit {setup.server_limit}, share {setup.share}"
                    )
                continue
            if (key := about_key(model.name, options.call)) not in journal:
                costs = {} if ranks is not None else {"costs": asdict(servers.costs(every[0][0]))}
                journal.add({key: about(model) | {"call": options.call} | costs})
            measure(servers, setup, missing, journal, options.call)


def planned(model: Model, ranks: Ranks | None) -> list[Server]:
    """A model's servers and the seeds of their runs."""
    return list(grid(model.name, model.scale) if ranks is None else placements(model.name, model.scale, ranks.size))


def measure(servers: Servers, setup: Setup, seeds: list[int], journal: Journal, call: str) -> None:
    """One server's runs, into the journal."""
    started = time.monotonic()
    rows = servers.run(setup, seeds)
    journal.add({setup.key(row["seed"]): row | {"call": call} for row in rows})
    if servers.leads:
        what = f"{setup.model} {setup.name}, limit {setup.server_limit}, share {setup.share:.3g}"
        common.console.print(f"{what}: {len(seeds)} runs in {time.monotonic() - started:.0f} s")


def about_key(name: str, call: str) -> str:
    """Names in the journal what one call says of a model."""
    return f"about {name} in {call}"


def about(model: Model) -> dict[str, Any]:
    """What a reader has to know of a model and its trace."""
    turns = [turn for dialogue in model.trace.dialogues for turn in dialogue.turns]
    return model.about | {
        "name": model.name,
        "scale": model.scale.facts(),
        "kv_budget": model.room.kv_budget,
        "chunk_size": model.room.chunk_size,
        "trace": {
            "digest": model.trace.digest,
            "source": model.trace.source,
            "preset": model.trace.preset,
            "requests": len(turns),
            "prompt_tokens": sum(turn.prompt_tokens for turn in turns),
            "reply_tokens": sum(turn.max_tokens for turn in turns),
        },
    }


def call_name() -> str:
    """Names what is measured from now on: the date, and on what."""
    machine = common.machine()
    return ", ".join([datetime.now(UTC).isoformat(timespec="seconds"), *machine.get("gpus", [machine["cpu"]])])


def main() -> int:
    options, started = arguments(__doc__), time.monotonic()
    # what was measured until then is written
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with tempfile.TemporaryDirectory() as folder, join("auto") as ranks:
            options.call = options.call or call_name()
            models = [made(name, options, Path(options.folder or folder), ranks) for name in options.models]
            path = options.journal if ranks is None or ranks.leads else None
            with nullcontext() if ranks is None else ranks.agreed():
                journal = Journal(path, identity(models, options), resume=True)
            with journal:
                try:
                    for model in models:
                        run(model, options, journal, started + options.seconds, ranks)
                finally:
                    write(models, options, journal, ranks)
    except HoldoverError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def identity(models: list[Model], options: Namespace) -> dict[str, Any]:
    """What decides what a run measures."""
    machine = common.machine()
    traces = {model.name: model.trace.digest for model in models}
    facts = {"benchmark": "serve", "traces": traces, "quick": options.quick, "threads": options.threads}
    return facts | {"commit": common.commit(), "cpu": machine["cpu"], "gpus": machine.get("gpus", [])}


def write(models: list[Model], options: Namespace, journal: Journal, ranks: Ranks | None) -> None:
    """The journal's runs, as a table and a file; nothing where there are none."""
    keys = [setup.key(seed) for model in models for setup, seeds in planned(model, ranks) for seed in seeds]
    rows = [journal[key] for key in keys if key in journal]
    if rows:
        said = [journal[key] for key in dict.fromkeys(about_key(row["model"], row["call"]) for row in rows)]
        serve_report.show(rows)
        common.write_results(options.out, rows, models=said, quick=options.quick)


def made(name: str, options: Namespace, folder: Path, ranks: Ranks | None) -> Model:
    """A model by its name; where ranks share a folder, rank 0 writes to it before the others look.

    Raises:
        HoldoverError: it cannot be made, on any rank.
    """
    if ranks is None:
        return _made(name, options, folder)
    for turn in (True, False):
        with ranks.agreed():
            if ranks.leads is turn:
                model = _made(name, options, folder)
    return model


def _made(name: str, options: Namespace, folder: Path) -> Model:
    if name in SHAPES:
        return shaped(name, folder, SEEDS[: options.seeds], options.recording)
    return bundled(name, options.recording or RECORDING, options.threads, quick=options.quick)


if __name__ == "__main__":
    sys.exit(main())
