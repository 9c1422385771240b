"""The composed protocol of ``holdover eval``: its options and problems, and what is shown of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdover.cli import measuring
from holdover.cli.chunk_diagnosis import WindowName, check_names, names
from holdover.cli.composed_tables import answer_tables, cause_tables, curve_tables, verdict

if TYPE_CHECKING:
    from holdover.engine.hf.loader import Loaded
    from holdover.evaluation.protocols.composed.design import Design
    from holdover.evaluation.protocols.composed.problem import ChunkedProblem

_PANEL = "Composed contexts"

Selectors = Annotated[str, typer.Option(rich_help_panel=_PANEL, help="Selectors of recomputed tokens, with commas.")]
Initialisers = Annotated[
    str, typer.Option(rich_help_panel=_PANEL, help="Recurrent states that contexts begin with, with commas.")
]
Ratios = Annotated[
    str, typer.Option(rich_help_panel=_PANEL, help="Shares of the chunks' tokens to recompute, with commas.")
]
SeamWindows = Annotated[
    str,
    typer.Option(rich_help_panel=_PANEL, help="Tokens to each side of a seam to recompute, with commas; or none."),
]
ConvWindow = Annotated[
    WindowName, typer.Option(rich_help_panel=_PANEL, help="What recomputed tokens see in their conv windows.")
]
Prompts = Annotated[int, typer.Option(min=1, rich_help_panel=_PANEL, help="Questions to draw without --problems.")]
Seed = Annotated[int, typer.Option(rich_help_panel=_PANEL, help="Of the questions that are drawn.")]
Chunks = Annotated[int, typer.Option(min=1, rich_help_panel=_PANEL, help="Documents of each of them.")]
Tokens = Annotated[int, typer.Option(min=1, rich_help_panel=_PANEL, help="Most tokens of a chunk.")]

SELECTORS, INITIALISERS = "cacheblend,epic,prophetkv,seam", "last,random,exact,zero"
# LinearKV §4.1; it names no windows
RATIOS, SEAM_WINDOWS = "0.03,0.05,0.1,0.2,0.3,0.4", "2,4,8,16,32"
PROMPTS, CHUNKS, TOKENS = 100, 4, 128


@dataclass(frozen=True)
class Drawing:
    """Questions that are drawn where no file has any."""

    prompts: int
    seed: int
    chunks: int
    tokens: int


def design_of(selectors: str, initialisers: str, ratios: str, seam_windows: str, conv_window: WindowName) -> Design:
    """What the options say.

    Raises:
        ConfigError: they cannot be used.
    """
    chosen, states = names(selectors, "--selectors"), names(initialisers, "--initialisers")
    shares = measuring.shares(ratios, "--ratios")
    windows = [] if seam_windows in ("", "none") else measuring.numbers(seam_windows, "--seam-windows")
    from holdover.evaluation.protocols.composed.design import Design

    # it knows better which states there are than whoever composes
    found = Design(tuple(chosen), tuple(states), tuple(shares), tuple(windows), conv_window)
    for share in shares:
        check_names(chosen, states, share, conv_window)
    return found


def problems_of(loaded: Loaded, path: Path | None, limit: int | None, drawing: Drawing) -> list[ChunkedProblem]:
    """Problems of a file, or questions that are drawn.

    Raises:
        HoldoverError: the file cannot be used, or the model cannot be asked so.
    """
    from holdover.evaluation.chunks.question import Framing
    from holdover.evaluation.chunks.recall import questions
    from holdover.evaluation.protocols.composed.problem import drawn, read_chunked

    framing = Framing(loaded.tokenizer, loaded.end_tokens)
    if path is not None:
        return read_chunked(path, framing, drawing.tokens, limit, loaded.host.layout.max_context)
    count = drawing.prompts if limit is None else min(limit, drawing.prompts)
    encode = loaded.tokenizer.encode_part
    found = questions(encode, count, chunks=drawing.chunks, tokens=drawing.tokens, seed=drawing.seed)
    return drawn(framing, found, drawing.tokens)


def run(
    loaded: Loaded, problems: Sequence[ChunkedProblem], design: Design, journal_path: Path | None, resume: bool
) -> dict[str, Any]:
    """Run a design, show what came of it, and return it for a file.

    Raises:
        HoldoverError: a problem does not fit into the model's context, or the journal cannot be used.
    """
    from holdover.evaluation.journal import Journal
    from holdover.evaluation.protocols.composed.depth import causes, curves
    from holdover.evaluation.protocols.composed.run import run_answers, run_layers
    from holdover.evaluation.protocols.composed.summary import summarise
    from holdover.evaluation.protocols.problem import digest
    from holdover.evaluation.protocols.results import head

    identity = measuring.measured_by(loaded, problems=digest(problems), **asdict(design))
    count = len(problems)
    with Journal(journal_path, identity, resume=resume) as journal:
        asked = run_answers(loaded.host, problems, design, loaded.end_tokens, journal)
        answers = list(measuring.tracked(asked, count, f"asking {count} questions"))
        compared = run_layers(loaded.host, problems, design, journal)
        errors = list(measuring.tracked(compared, count, f"comparing the layers of {count} contexts"))
    rows, depth, found = summarise(problems, answers, design), curves(errors, design), list(causes(errors, design))
    for table in (*answer_tables(rows), *curve_tables(depth), *cause_tables(found)):
        measuring.show(table)
    typer.echo(verdict(depth, found))
    return {
        **head("composed", loaded.host.device),
        **identity,
        "count": count,
        "rows": [asdict(row) for row in rows],
        "curves": [asdict(curve) for curve in depth],
        "causes": [asdict(cause) for cause in found],
    }
