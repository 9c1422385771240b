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
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks import common, serve_report
from benchmarks.common import Row
from benchmarks.serve_arms import Room, Servers
from benchmarks.serve_grid import Scale, Setup, grid, placements
from holdover.cli.loading import join
from holdover.engine.hf.tokenizer import Tokenizer
from holdover.engine.parallel.ranks import Ranks
from holdover.errors import HoldoverError
from holdover.evaluation.journal import Journal
from holdover.evaluation.traces.build import PRESETS, Preset, build_trace
from holdover.evaluation.traces.reader import Conversation
from holdover.evaluation.traces.sources import open_recordings
from holdover.evaluation.traces.trace import Trace, write_trace
from holdover.weights.source import resolve

RECORDING = Path(__file__).parent / "data" / "article_trace.json"
QUICK = Preset("quick", conversations=6, turns=3, shortest=256, longest=1024, context=2048, reply=24)
SEEDS = (1, 2, 3, 4, 5)
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
    path = resolve(name).path
    preset = QUICK if quick else PRESETS["small"]
    trace = frozen(name, path, preset, list(open_recordings(source)), source.name)
    # at one sixth, packed as INT8, the last states of 12 conversations fit, and dense ones do not
    scale = (
        Scale(6, (2,), (1 / 3,), SEEDS[:1], (64, 16), "int8")
        if quick
        else Scale(12, (4, 2), (1 / 6, 1 / 4), SEEDS[:2], (64, 16), "int8")
    )
    room = Room(_BUNDLED_ROOM.chunk_size, _BUNDLED_ROOM.kv_budget, threads)
    return Model(name, name, trace, scale, room, {"weights": "trained"})


def shaped(name: str, folder: Path, seeds: tuple[int, ...]) -> Model:
    """A model of random weights, asked pasted conversations."""
    from benchmarks.serve_models import SHAPES, write_model
    from benchmarks.serve_traces import PASTED, SOURCE, pasted, words

    shape = SHAPES[name]
    path = write_model(name, folder / name, words(), "cuda" if torch.cuda.is_available() else "cpu")
    trace = frozen(name, path, PASTED, list(pasted(PASTED.conversations)), SOURCE)
    scale = Scale(PASTED.conversations, (32, 16, 8), shape.shares, seeds, shape.windows)
    about = {"weights": "random", "layers": shape.layers, "published_layers": shape.in_full, "note": shape.note}
    return Model(name, str(path), trace, scale, _SHAPED_ROOM, about)


def frozen(name: str, path: Path, preset: Preset, recorded: list[Conversation], source: str) -> Trace:
    """The requests of a preset for a model's tokenizer."""
    tokenizer = Tokenizer(path)
    return build_trace(recorded, preset, tokenizer, tokenizer.end_tokens, model=name, source=source, seeds=SEEDS)


def run(model: Model, options: Namespace, journal: Journal, ends: float, ranks: Ranks | None) -> None:
    """Measure what is not in the journal, until the time is over."""
    with tempfile.TemporaryDirectory() as folder:
        write_trace(model.trace, path := Path(folder) / "trace.jsonl")
        servers = Servers(model.name, model.path, model.trace, path, model.room, model.scale.clients, ranks)
        planned = list(
            grid(model.name, model.scale) if ranks is None else placements(model.name, model.scale, ranks.size)
        )
        if ranks is None and (key := f"about {model.name}") not in journal:
            costs = servers.costs(planned[0][0])
            journal.add({key: about(model) | {"costs": asdict(costs)}})
        for setup, seeds in sharded(planned, options.shard):
            missing = [seed for seed in seeds if setup.key(seed) not in journal]
            is_over = time.monotonic() > ends
            if not servers.agreed(bool(missing) and not is_over):
                if missing and servers.leads:
                    common.console.print(
                        f"not measured: {setup.name} at limit {setup.server_limit}, share {setup.share}"
                    )
                continue
            measure(servers, setup, missing, journal)


def measure(servers: Servers, setup: Setup, seeds: list[int], journal: Journal) -> None:
    """One server's runs, into the journal."""
    started = time.monotonic()
    rows = servers.run(setup, seeds)
    journal.add({setup.key(row["seed"]): row for row in rows})
    if servers.leads:
        what = f"{setup.model} {setup.name}, limit {setup.server_limit}, share {setup.share:.3g}"
        common.console.print(f"{what}: {len(seeds)} runs in {time.monotonic() - started:.0f} s")


def sharded(planned: list[tuple[Setup, tuple[int, ...]]], shard: str) -> Iterator[tuple[Setup, tuple[int, ...]]]:
    """Every n-th server of a grid, from the i-th on, by a shard ``i/n``."""
    number, count = map(int, shard.split("/"))
    yield from planned[number::count]


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


def arguments() -> Namespace:
    parser = common.arguments("serve", __doc__)
    parser.add_argument("--models", default="tiny-gdn", help="bundled models and shapes, with commas (%(default)s)")
    parser.add_argument("--trace", type=Path, default=RECORDING, help="what bundled models are asked (%(default)s)")
    parser.add_argument("--folder", type=Path, help="where models of random weights are kept; nowhere if unset")
    parser.add_argument("--journal", type=Path, help="finished runs, so that another call goes on")
    parser.add_argument("--seconds", type=float, default=480, help="start no server after so many (%(default)s)")
    parser.add_argument("--shard", default="0/1", help="part i of n of every grid, as i/n (%(default)s)")
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="runs of the main arms (%(default)s)")
    return parser.parse_args()


def main() -> int:
    options, started = arguments(), time.monotonic()
    # what was measured until then is written
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    names = options.models.split(",")
    with tempfile.TemporaryDirectory() as folder, join("auto") as ranks:
        is_first = ranks is None or ranks.leads
        path = options.journal if is_first else None
        rows: list[Row] = []
        models: list[dict[str, Any]] = []
        try:
            with Journal(path, {"benchmark": "serve", "models": names, "quick": options.quick}, resume=True) as journal:
                for name in names:
                    model = made(name, options, Path(options.folder or folder), ranks)
                    run(model, options, journal, started + options.seconds, ranks)
                    models.append(journal[key] if (key := f"about {name}") in journal else about(model))
                    every = grid(name, model.scale) if ranks is None else placements(name, model.scale, ranks.size)
                    keys = [setup.key(seed) for setup, seeds in every for seed in seeds]
                    rows += [journal[key] for key in keys if key in journal]
        except HoldoverError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        finally:
            if is_first and rows:
                serve_report.show(rows)
                common.write_results(options.out, rows, models=models, quick=options.quick)
    return 0


def made(name: str, options: Namespace, folder: Path, ranks: Ranks | None) -> Model:
    """A model by its name; where ranks share a folder, rank 0 writes to it before the others look."""
    from benchmarks.serve_models import SHAPES

    if ranks is not None and not ranks.leads:
        with ranks.agreed():
            pass
    try:
        return _made(name, options, folder, is_shape=name in SHAPES)
    finally:
        if ranks is not None and ranks.leads:
            with ranks.agreed():
                pass


def _made(name: str, options: Namespace, folder: Path, *, is_shape: bool) -> Model:
    if is_shape:
        return shaped(name, folder, SEEDS[: options.seeds])
    return bundled(name, options.trace, options.threads, quick=options.quick)


if __name__ == "__main__":
    sys.exit(main())
