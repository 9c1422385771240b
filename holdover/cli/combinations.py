"""The combinations protocol of ``holdover eval``: what is combined, and what is shown of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdover.cli import measuring
from holdover.cli.warm_replay import problems_of
from holdover.errors import ConfigError
from holdover.report.tables import Table, size

if TYPE_CHECKING:
    from holdover.engine.hf.loader import Loaded
    from holdover.evaluation.chunks.case import Case
    from holdover.evaluation.protocols.combinations.arms import Combination
    from holdover.evaluation.protocols.combinations.chunk_summary import ChunkRow
    from holdover.evaluation.protocols.combinations.chunks import Contexts, State
    from holdover.evaluation.protocols.combinations.conversation import Conversation
    from holdover.evaluation.protocols.combinations.run import Talk
    from holdover.evaluation.protocols.combinations.summary import AtTurn, Growth, Row
    from holdover.retention import RetentionPlan

RESTORES = 20

Restores = Annotated[int, typer.Option(min=1, help="combinations: turns that resume, one after the other.")]
Compose = Annotated[
    bool, typer.Option("--compose/--no-compose", help="combinations: also compose contexts of reduced chunk states.")
]

_INTERVAL = "95 % interval"
_ROWS = ("arm", "mean KL", _INTERVAL, "P95", "agree", "to dense decode", _INTERVAL, "checkpoint", "live", "drafts", "n")
_TURNS = ("arm", "restores", "k", "tokens", "mean KL", _INTERVAL, "beyond one restore", _INTERVAL, "n")
_GROWTH = ("arm", "KL a restore", _INTERVAL, "beyond one restore", _INTERVAL, "restores", "n")
_CHUNKS = (
    *("chunk states", "W_max", "initialiser", "run again", "mean KL", _INTERVAL, "P95", "agree"),
    *("to full", _INTERVAL, "bytes", "n"),
)
_CHUNKS_OF_CONTEXT, _QUERY = 4, 16


@dataclass(frozen=True)
class Subject:
    """What the combinations are tried on.

    Attributes:
        conversations: held in every arm.
        cases: contexts that are composed of chunks; none for problems.
    """

    conversations: Sequence[Conversation]
    cases: Sequence[Case] = ()


@dataclass(frozen=True)
class Cut:
    """How large everything is.

    Attributes:
        prefix: tokens of a conversation's first message, and of a context's chunks together.
        following: tokens of a reply, and of a further message.
        restores: turns behind the first.
        limit: most conversations, and most contexts; None for all that there are.
        composes: whether contexts are composed.
    """

    prefix: int
    following: int
    restores: int
    limit: int | None
    composes: bool


def subject_of(loaded: Loaded, problems: Path | None, text: Path | None, cut: Cut) -> Subject:
    """Conversations of a file of problems, or of a text, of which contexts are made too.

    Raises:
        ConfigError: the file cannot be used, or has too little.
    """
    from holdover.evaluation.protocols.combinations.conversation import from_problems, from_text
    from holdover.evaluation.retention.prefixes import read_text

    turns = 1 + cut.restores
    if text is None:
        most = None if cut.limit is None else cut.limit * turns
        asked = problems_of(loaded, problems, None, cut.prefix, cut.following, most)
        return Subject(from_problems(asked, turns=turns, following=cut.following))
    tokens = loaded.tokenizer.encode(read_text(text))
    held = from_text(tokens, turns=turns, prefix=cut.prefix, following=cut.following, limit=cut.limit)
    return Subject(held, _cases(loaded, tokens, cut) if cut.composes else ())


def plans_of(loaded: Loaded, plan: str | None, cutoffs: Sequence[int]) -> list[RetentionPlan]:
    """The plan that was named, or the model's plans at some cutoffs.

    Raises:
        ConfigError: ``auto`` found none.
        PlanError: the plan cannot be used with this model.
    """
    from holdover.engine.planning import choose_plan
    from holdover.retention.decay import read_decay
    from holdover.retention.plan import RetentionPlan

    if plan is None:
        assert loaded.files is not None
        decay = read_decay(loaded.files)
        return [RetentionPlan.of(decay, cutoff) for cutoff in cutoffs]
    found = choose_plan(loaded, plan)
    if found.plan is None:
        raise ConfigError(f"{found.note}: name a plan's file, or leave --plan out for the cutoffs of --wmax")
    return [found.plan]


def run(
    loaded: Loaded,
    subject: Subject,
    kinds: Sequence[str],
    plans: Sequence[RetentionPlan],
    merge_interval: int | None,
    journal_path: Path | None,
    resume: bool,
) -> dict[str, Any]:
    """Hold every conversation in every combination, compose contexts, show what came of it, and return it for a file.

    Raises:
        HoldoverError: something does not fit, or an arm did not do what it is about.
    """
    from holdover.evaluation.journal import Journal
    from holdover.evaluation.protocols.arms import arms_of
    from holdover.evaluation.protocols.combinations import chunks
    from holdover.evaluation.protocols.combinations import run as talks
    from holdover.evaluation.protocols.combinations.arms import combinations_of
    from holdover.evaluation.protocols.combinations.chunk_summary import chunk_rows
    from holdover.evaluation.protocols.combinations.summary import at_turns, growths, rows
    from holdover.evaluation.protocols.problem import digest
    from holdover.evaluation.protocols.results import head

    # the five random masks are warm replay's
    kept = [kind for kind in kinds if kind != "random"]
    arms = combinations_of(arms_of(kept, {plan.w_max: plan for plan in plans}))
    states = chunks.states_of(plans) if subject.cases else []
    digests = {f"plan_{plan.w_max}": plan.digest for plan in plans}
    identity = measuring.measured_by(
        loaded,
        protocol="combinations",
        conversations=digest(subject.conversations),
        merge_interval=merge_interval,
        **digests,
    )
    held: dict[Combination, list[Talk]] = {arm: [] for arm in arms}
    composed: dict[State, list[Contexts]] = {state: [] for state in states}
    with Journal(journal_path, identity, resume=resume) as journal:
        steps = talks.run(loaded, arms, subject.conversations, merge_interval, journal)
        for found in measuring.tracked(steps, len(subject.conversations), f"{len(arms)} combinations"):
            for arm, talk in found.items():
                held[arm].append(talk)
        contexts = chunks.run(loaded.host, states, subject.cases, journal)
        for state, one in measuring.tracked(contexts, len(states) * len(subject.cases), "chunk states"):
            composed[state].append(one)
    by_arm, by_turn, growth, of_chunks = rows(held), at_turns(held), growths(held), chunk_rows(composed)
    for table in (_rows(by_arm), _turns(by_turn), _growth(growth), _chunks(of_chunks)):
        if table.rows:
            measuring.show(table)
    return {
        **head("combinations", loaded.host.device),
        **identity,
        "dtype": loaded.dtype,
        "rows": [asdict(row) for row in by_arm],
        "turns": [asdict(row) for row in by_turn],
        "growth": [asdict(row) for row in growth],
        "chunks": [asdict(row) for row in of_chunks],
    }


def _cases(loaded: Loaded, tokens: Sequence[int], cut: Cut) -> list[Case]:
    from holdover.evaluation.chunks.case import Cut as Pieces

    if not (size := cut.prefix // _CHUNKS_OF_CONTEXT):
        raise ConfigError(f"a context of {cut.prefix} tokens has no {_CHUNKS_OF_CONTEXT} chunks: raise --prefix")
    one = Pieces(1, _CHUNKS_OF_CONTEXT, size, _QUERY, cut.following)
    most = len(tokens) // one.piece
    count = most if cut.limit is None else min(cut.limit, most)
    return replace(one, contexts=count).cases(tokens, loaded.host.layout.max_context)


def _rows(found: Sequence[Row]) -> Table:
    def cells(row: Row) -> tuple[str, ...]:
        drafts = "-" if row.speculate == "off" else f"{row.work.accepted} of {row.work.drafted}"
        between = _signed(row.difference, row.difference_low, row.difference_high)
        quality = (f"{row.mean:.3g}", _between(row.low, row.high), f"{row.p95:.2g}", f"{row.agreement:.2%}")
        return row.arm, *quality, *between, size(row.checkpoint_bytes), size(row.slot_bytes), drafts, str(row.count)

    return Table("", _ROWS, tuple(map(cells, found)))


def _turns(found: Sequence[AtTurn]) -> Table:
    def cells(row: AtTurn) -> tuple[str, ...]:
        more = _signed(row.excess, row.excess_low, row.excess_high)
        at = (str(row.restores), str(row.losses), f"{row.resumed:.0f}")
        return row.arm, *at, f"{row.mean:.3g}", _between(row.low, row.high), *more, str(row.count)

    # the others are in the file: they say the same with the figures of another way to decode
    return Table("", _TURNS, tuple(cells(row) for row in found if row.excess is not None))


def _growth(found: Sequence[Growth]) -> Table:
    def cells(row: Growth) -> tuple[str, ...]:
        slope = _signed(row.slope, row.low, row.high)
        return row.arm, *slope, *_signed(row.excess, row.excess_low, row.excess_high), str(row.restores), str(row.count)

    return Table("", _GROWTH, tuple(map(cells, found)))


def _chunks(found: Sequence[ChunkRow]) -> Table:
    def cells(row: ChunkRow) -> tuple[str, ...]:
        kept = (row.state, "-" if row.w_max is None else str(row.w_max), row.initialiser)
        quality = (f"{row.mean:.3g}", _between(row.low, row.high), f"{row.p95:.2g}", f"{row.agreement:.2%}")
        between = _signed(row.difference, row.difference_low, row.difference_high)
        return *kept, f"{row.selector} {row.ratio:.0%}", *quality, *between, size(row.state_bytes), str(row.count)

    return Table("", _CHUNKS, tuple(map(cells, found)))


def _between(low: float, high: float) -> str:
    return f"{low:.2g} to {high:.2g}"


def _signed(value: float | None, low: float | None, high: float | None) -> tuple[str, str]:
    if value is None or low is None or high is None:
        return "-", "-"
    return f"{value:+.2g}", f"{low:+.2g} to {high:+.2g}"
