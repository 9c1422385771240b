"""Which server configurations are measured, the most telling ones first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from benchmarks.common import Row
from holdover.engine.options import EngineOptions
from holdover.prefix.eviction import Eviction
from holdover.retention import Element, RefreshPolicy
from holdover.retention.placement import PlacementMode

Arm = Literal["dense", "nr", "wr"]
# the paper's order, and today's default
PAPERS: Eviction = "lru"
DEFAULT: Eviction = EngineOptions().eviction
# runs of the main arms before anything else: what a short time leaves of a grid should still compare them
_AT_ONCE = 2


@dataclass(frozen=True)
class Setup:
    """One server.

    Attributes:
        model: name of its model.
        arm: whether checkpoints are dense, packed with omitted units at zero (NR) or replayed (WR).
        w_max: retention cutoff in tokens; None for dense checkpoints.
        element: how a packed checkpoint stores what it retains.
        placement: which rank computes and stores what a plan retains.
        ranks: processes that run the model together, each on a GPU of its own.
        eviction: which checkpoint leaves first.
        share: its state budget, in dense checkpoints of one for every request of the trace.
        server_limit: requests that it runs together.
    """

    model: str
    arm: Arm
    w_max: int | None
    share: float
    server_limit: int
    element: Element = "full"
    placement: PlacementMode = "off"
    ranks: int = 1
    eviction: Eviction = PAPERS

    @property
    def name(self) -> str:
        """The arm with what sets it apart."""
        parts = [self.arm, *([] if self.w_max is None else [str(self.w_max)])]
        return " ".join([*parts, *(x for x in (self.element, self.placement, self.eviction) if x not in _USUAL)])

    @property
    def refresh(self) -> RefreshPolicy:
        """What becomes of omitted units."""
        return "suffix" if self.arm == "wr" else "none"

    def key(self, seed: int) -> str:
        """Names one run of it."""
        return " ".join(f"{name}={value}" for name, value in (asdict(self) | {"seed": seed}).items())


# what needs no mention
_USUAL = ("full", "off", PAPERS)
# one, and the seeds of its runs
Server = tuple[Setup, tuple[int, ...]]
# what two runs of one server have alike
SETUP = tuple(field.name for field in fields(Setup))


def setup_of(row: Row) -> Setup:
    """The server that a row is of."""
    return Setup(**{name: row[name] for name in SETUP if name in row})


def groups(rows: Sequence[Row]) -> dict[tuple[Setup, str], list[Row]]:
    """The rows of each server and call, in order of first appearance: what another call measured stands apart."""
    found: dict[tuple[Setup, str], list[Row]] = {}
    for row in rows:
        found.setdefault((setup_of(row), row["call"]), []).append(row)
    return found


@dataclass(frozen=True)
class Scale:
    """How much is measured of a model.

    Attributes:
        clients: conversations under way at a time.
        limits: requests that a server runs together, the main number first.
        shares: state budgets as shares of the trace's working set, the main one first.
        seeds: runs of the dense arm and the chosen one; others make the first.
        windows: W_max of the chosen arm, and a second one.
        element: how their packed checkpoints store what they retain.
    """

    clients: int
    limits: tuple[int, ...]
    shares: tuple[float, ...]
    seeds: tuple[int, ...]
    windows: tuple[int, int]
    element: Element = "full"

    def facts(self) -> dict[str, Any]:
        """For a file of results."""
        return asdict(self)


def grid(model: str, scale: Scale) -> Iterator[Server]:
    """Servers on one device and the seeds of their runs."""
    (chosen, other), element = scale.windows, scale.element
    share, limit, first = scale.shares[0], scale.limits[0], scale.seeds[:1]

    def pair(share: float, limit: int, seeds: tuple[int, ...], eviction: Eviction = PAPERS) -> Iterator[Server]:
        yield Setup(model, "dense", None, share, limit, eviction=eviction), seeds
        yield Setup(model, "nr", chosen, share, limit, element, eviction=eviction), seeds

    yield from pair(share, limit, scale.seeds[:_AT_ONCE])
    for number, fewer in enumerate(scale.limits[1:]):
        yield from pair(share, fewer, first)
        if not number and (rest := scale.seeds[_AT_ONCE:]):
            yield from pair(share, limit, rest)
    for budget in scale.shares:
        yield from pair(budget, limit, first, DEFAULT)
    for budget in scale.shares[1:]:
        yield from pair(budget, limit, first)
    yield Setup(model, "wr", chosen, share, limit, element), first
    yield Setup(model, "nr", other, share, limit, element), first
    yield Setup(model, "wr", other, share, limit, element), first
    yield Setup(model, "nr", chosen, share, limit, "full" if element == "int8" else "int8"), first


def shard(servers: Sequence[Server], number: int, count: int) -> list[Server]:
    """Every ``count``-th pair of servers from the ``number``-th on: those of a pair are of one process."""
    return [server for place, server in enumerate(servers) if place // 2 % count == number]


def placements(model: str, scale: Scale, ranks: int) -> Iterator[Server]:
    """Servers over several ranks: the chosen arm under every placement beside the dense one."""
    share, limit, first = scale.shares[0], scale.limits[0], scale.seeds[:1]
    modes: tuple[PlacementMode, ...] = ("off", "hybrid", "storage")
    for mode in modes:
        yield Setup(model, "nr", scale.windows[0], share, limit, scale.element, mode, ranks), first
    yield Setup(model, "dense", None, share, limit, ranks=ranks), first
