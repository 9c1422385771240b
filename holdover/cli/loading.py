"""Options of the commands that load a model, and what is seen while it loads."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console

from holdover.arch.registry import layout_from_config
from holdover.cli.composing import Composing
from holdover.cli.errors import BAD_INPUT
from holdover.errors import HoldoverError
from holdover.weights.check import check_files
from holdover.weights.source import resolve

if TYPE_CHECKING:
    from holdover.engine.engine import Engine
    from holdover.engine.parallel.ranks import Ranks

# as `holdover.retention` has them, whose import takes torch's seconds
RefreshName = Literal["none", "suffix"]
ElementName = Literal["full", "bfloat16", "int8"]
DecodeName = Literal["auto", "dense", "deferred"]
SpeculateName = Literal["off", "ngram", "mtp"]
EvictionName = Literal["lru", "cost", "coverage"]
PlacementName = Literal["off", "storage", "hybrid"]

Model = Annotated[str, typer.Argument(help="Name of a bundled model, directory of a model, or hub id.")]
Dtype = Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")]
Device = Annotated[str, typer.Option(help="A torch device, or auto for a GPU if there is one.")]
StateBudget = Annotated[
    str | None, typer.Option(help="Recurrent state, live and cached, such as 512MiB; a share of free memory if unset.")
]
KVBudget = Annotated[str | None, typer.Option("--kv-budget", help="Keys and values, live and cached; likewise.")]
MaxContext = Annotated[int | None, typer.Option(help="Longest sequence in tokens; the model's own limit if unset.")]
MaxRunning = Annotated[int, typer.Option(help="Sequences that run together.")]
ChunkSize = Annotated[
    int | None,
    typer.Option(
        help="Most prompt tokens of one forward while other requests wait (by default 512 on a CPU, 2,048 on a GPU); "
        "four times as many while none does."
    ),
]
Plan = Annotated[
    str | None,
    typer.Option(
        help="Retention plan that checkpoints are packed by: a file, or auto for the model's own if it passed its "
        "quality gate. Dense checkpoints if unset."
    ),
]
Refresh = Annotated[
    RefreshName | None,
    typer.Option(help="Units that a plan omits: leave them at zero, or replay a suffix. As the plan was gated."),
]
ElementOption = Annotated[
    ElementName | None, typer.Option("--element", help="How a packed checkpoint stores numbers. As the plan was gated.")
]
NativeSlots = Annotated[
    int | None, typer.Option(min=1, help="State slots for running sequences and dense checkpoints; split by rule.")
]
PackedSlots = Annotated[int | None, typer.Option(min=1, help="Slots for packed checkpoints; the rest of the budget.")]
DenseSpill = Annotated[
    bool, typer.Option("--dense-spill/--no-dense-spill", help="Keep checkpoints dense while no packed slot is free.")
]
Watermark = Annotated[int, typer.Option(min=0, help="State slots to keep free by packing ahead of need.")]
Evict = Annotated[
    EvictionName,
    typer.Option(
        "--eviction",
        help="Which checkpoint goes first: the least recently used, the one that promises to save least, "
        "or one whose branch has a deeper one.",
    ),
]
MaxLosses = Annotated[
    int | None, typer.Option(min=0, help="Most lossy restores in a resumed state's past; any number if unset.")
]
ShadowCheck = Annotated[
    float, typer.Option(min=0, max=1, help="Share of approximate hits to compute again exactly and compare.")
]
HostBudget = Annotated[str | None, typer.Option(help="Host memory for checkpoints below the resident tiers, as 4GiB.")]
SpillDir = Annotated[Path | None, typer.Option(help="Directory for checkpoints that outlive the server.")]
SpillLag = Annotated[
    int, typer.Option(min=0, help="Checkpoints that may be unwritten when a request ends: those that a crash loses.")
]
SpillBudget = Annotated[str, typer.Option(help="Bytes that the directory may hold.")]
Decode = Annotated[
    DecodeName,
    typer.Option(
        help="Write the whole state at every token, or keep a log of recent updates beside it; auto: the faster."
    ),
]
MergeInterval = Annotated[
    int | None, typer.Option(min=1, max=64, help="Tokens between two writes of a state; what is fastest if unset.")
]
Speculate = Annotated[
    SpeculateName,
    typer.Option(
        help="Who drafts tokens that one step verifies: ngram looks them up in the text, mtp is the model's own head."
    ),
]
DraftTokens = Annotated[int, typer.Option(min=1, max=15, help="Tokens that are drafted for a step.")]
CudaGraphs = Annotated[
    bool, typer.Option("--cuda-graphs/--no-cuda-graphs", help="Capture decode steps on a GPU and replay them.")
]
Placement = Annotated[
    PlacementName,
    typer.Option(
        help="Under torchrun, which rank computes and stores what a plan retains: each its own part (off), storage "
        "balanced (storage), or heads dealt so too (hybrid)."
    ),
]
Threads = Annotated[int | None, typer.Option(min=1, help="Threads that torch computes with; its own choice if unset.")]


@contextmanager
def progress(console: Console, what: str) -> Iterator[None]:
    """Say that ``what`` is going on: with a spinner on a terminal, as a line elsewhere."""
    if console.is_terminal:
        with console.status(what):
            yield
    else:
        console.print(what, markup=False, soft_wrap=True)
        yield


@dataclass(frozen=True)
class Caching:
    """How checkpoints are kept, as the user wrote it; defaults keep them dense and in memory."""

    plan: str | None = None
    refresh: RefreshName | None = None
    element: ElementName | None = None
    native_slots: int | None = None
    packed_slots: int | None = None
    dense_spill: bool = True
    watermark: int = 1
    eviction: EvictionName = "cost"
    max_losses: int | None = None
    shadow_share: float = 0.0
    host_budget: str | None = None
    spill_dir: Path | None = None
    spill_budget: str = "20GiB"
    spill_lag: int = 1


DENSE = Caching()


@dataclass(frozen=True)
class Decoding:
    """How decode runs, as the user wrote it."""

    decode: DecodeName = "auto"
    merge_interval: int | None = None
    speculate: SpeculateName = "off"
    draft_tokens: int = 3
    cuda_graphs: bool = True


PLAIN = Decoding()
COMPOSING = Composing()


def load_engine(
    model: str,
    *,
    dtype: str = "auto",
    device: str = "auto",
    state_budget: str | None = None,
    kv_budget: str | None = None,
    max_context: int | None = None,
    max_running: int = 16,
    chunk_size: int | None = None,
    threads: int | None = None,
    caching: Caching = DENSE,
    decoding: Decoding = PLAIN,
    composing: Composing = COMPOSING,
    ranks: Ranks | None = None,
    placement: PlacementName = "off",
) -> Engine:
    """Load a model with the options as the user wrote them, or a rank's part of it.

    Raises:
        HoldoverError: the model or an option cannot be used.
    """
    _check(model)
    # the libraries' own bars for downloads and weights would be drawn into ours
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from holdover.engine.engine import Engine
    from holdover.engine.memory import parse_bytes

    if threads is not None:
        import torch

        torch.set_num_threads(threads)
    sizes = {"state_budget": state_budget, "kv_budget": kv_budget, "host_budget": caching.host_budget}
    return Engine.from_pretrained(
        model,
        dtype=dtype,
        device=device,
        max_context=max_context,
        max_running=max_running,
        chunk_size=chunk_size,
        plan=caching.plan,
        refresh=caching.refresh,
        element=caching.element,
        native_slots=caching.native_slots,
        packed_slots=caching.packed_slots,
        dense_spill=caching.dense_spill,
        watermark=caching.watermark,
        eviction=caching.eviction,
        max_losses=caching.max_losses,
        shadow_share=caching.shadow_share,
        spill_dir=caching.spill_dir,
        spill_lag=caching.spill_lag,
        spill_budget=parse_bytes(caching.spill_budget),
        chunks=composing.settings(),
        compose=composing.mode,
        ranks=ranks,
        placement=placement,
        **asdict(decoding),
        **{name: None if size is None else parse_bytes(size) for name, size in sizes.items()},
    )


def join(device: str) -> AbstractContextManager[Ranks | None]:
    """The group that torchrun has started this process for; None outside one.

    Raises:
        HoldoverError: it cannot be joined.
    """
    if os.environ.get("WORLD_SIZE", "1") == "1":
        return nullcontext()
    from holdover.engine.parallel.ranks import Ranks

    return Ranks.join(device)


def follow(load: Callable[[], Engine]) -> None:
    """On another rank than 0: load, and do as rank 0 does until it ends.

    Raises:
        ParallelError: rank 0 is gone, or this rank does not stand where it does.
    """
    # rank 0 says when to end, and the end of rank 0 is seen
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    try:
        engine = load()
    except HoldoverError:
        # rank 0 has met it too, and says so
        raise typer.Exit(BAD_INPUT) from None
    engine.follow()


def _check(model: str) -> None:
    """Refuse now what loading would refuse too, after the seconds that it takes to import torch."""
    files = resolve(model)
    layout_from_config(files.config)
    check_files(files)
