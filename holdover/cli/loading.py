"""Options of the commands that load a model, and what is seen while it loads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from holdover.arch.registry import layout_from_config
from holdover.weights.check import check_files
from holdover.weights.source import resolve

if TYPE_CHECKING:
    from holdover.engine.engine import Engine

Model = Annotated[str, typer.Argument(help="Name of a bundled model, directory of a model, or hub id.")]
Dtype = Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")]
Device = Annotated[str, typer.Option(help="A torch device, or auto for a GPU if there is one.")]
StateMemory = Annotated[
    str | None, typer.Option(help="Recurrent state, live and cached, such as 512MiB; a share of free memory if unset.")
]
KVMemory = Annotated[str | None, typer.Option("--kv-memory", help="Keys and values, live and cached; likewise.")]
MaxContext = Annotated[int | None, typer.Option(help="Longest sequence in tokens; the model's own limit if unset.")]
MaxRunning = Annotated[int, typer.Option(help="Sequences that run together.")]
ChunkSize = Annotated[
    int,
    typer.Option(
        help="Most prompt tokens of one forward while other requests wait; four times as many while none does."
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


def load_engine(
    model: str,
    *,
    dtype: str = "auto",
    device: str = "auto",
    state_memory: str | None = None,
    kv_memory: str | None = None,
    max_context: int | None = None,
    max_running: int = 16,
    chunk_size: int = 512,
    threads: int | None = None,
) -> Engine:
    """Load a model with the options as the user wrote them.

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
    return Engine.from_pretrained(
        model,
        dtype=dtype,
        device=device,
        state_memory=None if state_memory is None else parse_bytes(state_memory),
        kv_memory=None if kv_memory is None else parse_bytes(kv_memory),
        max_context=max_context,
        max_running=max_running,
        chunk_size=chunk_size,
    )


def _check(model: str) -> None:
    """Refuse now what loading would refuse too, after the seconds that it takes to import torch."""
    files = resolve(model)
    layout_from_config(files.config)
    check_files(files)
