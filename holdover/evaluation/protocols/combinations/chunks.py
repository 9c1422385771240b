"""Chunk states that are kept reduced: what contexts composed of them cost beside a full prefill."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from holdover.arch.layout import StateLayout
from holdover.codec import Codec
from holdover.engine.chunks.gate import extras_for
from holdover.engine.host import Host
from holdover.errors import IntegrityError
from holdover.evaluation.chunks.bench import Workbench
from holdover.evaluation.chunks.case import Case
from holdover.evaluation.journal import Journal
from holdover.evaluation.protocols.divergence import agreeing, divergences
from holdover.evaluation.protocols.problem import digest
from holdover.retention import RetentionPlan

Kept = Literal["full", "bf16", "packed", "int8"]
# (selector, ratio): nothing run again, and a fifth at the chunks' beginnings
_RUNS = (("none", 0.0), ("epic", 0.2))
_INITIALISERS = ("last", "exact")


@dataclass(frozen=True)
class State:
    """How chunk states are kept.

    Attributes:
        kept: ``full`` as they are, ``bf16``, ``packed`` by a plan, whose omitted units are zero, or ``int8``.
        plan: the plan of those that are packed.
    """

    kept: Kept
    plan: RetentionPlan | None = None

    @property
    def name(self) -> str:
        """The way among others of one run."""
        return self.kept if self.plan is None else f"{self.kept}-w{self.plan.w_max}"

    def codec(self, layout: StateLayout) -> Codec | None:
        """How they are packed; None where they are not."""
        if self.kept == "full":
            return None
        element: dict[Kept, Literal["full", "bfloat16", "int8"]] = {"bf16": "bfloat16", "int8": "int8"}
        return Codec(layout, self.plan, element=element.get(self.kept, "full"))


@dataclass(frozen=True)
class Composed:
    """One context, composed in one way.

    Attributes:
        initialiser: which state it begins with.
        selector: which tokens of chunks were run again.
        ratio: share of them.
        kl: KL(full prefill || composed) in nats after the query and after each following token but the last.
        same: tokens after which the most probable token is the same.
    """

    initialiser: str
    selector: str
    ratio: float
    kl: tuple[float, ...]
    same: int


@dataclass(frozen=True)
class Contexts:
    """What one way to keep chunk states made of one context.

    Attributes:
        composed: one for each way to compose.
        packed: chunk states that were packed records.
        state_bytes: bytes of one chunk's state.
    """

    composed: tuple[Composed, ...]
    packed: int
    state_bytes: int


def states_of(plans: Sequence[RetentionPlan]) -> list[State]:
    """Every way to keep chunk states; packed ones by each of some plans."""
    return [State("full"), State("bf16"), *(State("packed", plan) for plan in plans), State("int8")]


def run(
    host: Host, states: Sequence[State], cases: Sequence[Case], journal: Journal
) -> Iterator[tuple[State, Contexts]]:
    """Compose every context of every kind of chunk states; contexts that the journal has are not composed again.

    Raises:
        ConfigError: a context does not fit, or the model's keys cannot be moved.
        IntegrityError: a chunk's state was not kept as it was to be.
    """
    for state in states:
        bench: Workbench | None = None
        for case in cases:
            key = f"chunks/{state.name}/{digest([case])}"
            if key not in journal:
                codec = state.codec(host.layout.state)
                bench = bench or Workbench(host, cases, extras_for(_INITIALISERS, ["stream"]), codec)
                size = host.layout.state.checkpoint_bytes if codec is None else codec.nbytes
                journal.add({key: asdict(_contexts(bench, case, state, size))})
            yield state, _read(journal[key])


def _contexts(bench: Workbench, case: Case, state: State, size: int) -> Contexts:
    bench.open(case)
    tier = "native" if state.kept == "full" else "compressed"
    found_in = [entry.checkpoint.tier for entry in bench.view.entries]
    if set(found_in) != {tier}:
        raise IntegrityError(f"chunk states of {state.name} lie in {found_in}, and not in {tier} slots")
    exact = bench.exact()
    composed = []
    for selector, ratio in _RUNS:
        positions = bench.choose(selector, ratio)
        for initialiser in _INITIALISERS:
            repair = bench.compose(positions, initialiser)
            found = bench.composed()
            kl, same = divergences(exact, found), agreeing(exact, found)
            composed.append(Composed(initialiser, selector, repair.ratio, kl, same))
    return Contexts(tuple(composed), found_in.count("compressed"), size)


def _read(entry: dict[str, Any]) -> Contexts:
    composed = tuple(Composed(**{**one, "kl": tuple(one["kl"])}) for one in entry["composed"])
    return Contexts(composed, entry["packed"], entry["state_bytes"])
