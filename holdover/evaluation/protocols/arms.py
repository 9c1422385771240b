"""The arms that a protocol compares: dense checkpoints, and ways of keeping less of them (DASC §5.2, App. E)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from holdover.arch.layout import StateLayout
from holdover.codec import Codec
from holdover.engine.options import EngineOptions
from holdover.errors import ConfigError
from holdover.evaluation.residency import AllButLast, replayable
from holdover.retention import Element, RefreshPolicy, RetentionPlan

DENSE = "dense"
# masks of the count-matched control, the same for every model (App. C.2)
SEEDS = (1234, 2027, 3407, 4519, 5683)
_KINDS: dict[str, tuple[RefreshPolicy, Element]] = {
    "nr": ("none", "full"),
    "wr": ("suffix", "full"),
    "nr+int8": ("none", "int8"),
    "wr+int8": ("suffix", "int8"),
    "random": ("none", "full"),
}
KINDS = (DENSE, "int8", *_KINDS)


@dataclass(frozen=True)
class Arm:
    """One way to keep checkpoints.

    Attributes:
        kind: one of `KINDS`.
        plan: what is retained; None for everything.
        refresh: what becomes of omitted units.
        element: how retained elements are stored.
        seed: of a random mask; None where it is no control.
    """

    kind: str
    plan: RetentionPlan | None = None
    refresh: RefreshPolicy = "none"
    element: Element = "full"
    seed: int | None = None

    @property
    def name(self) -> str:
        """The arm among others of one run."""
        parts = [self.kind, *([f"w{self.plan.w_max}"] if self.plan else []), *([f"s{self.seed}"] if self.seed else [])]
        return "-".join(parts)

    @property
    def tier(self) -> str:
        """Where every one of its hits comes from."""
        return "native" if self.kind == DENSE else "compressed"

    def nbytes(self, layout: StateLayout) -> int:
        """Bytes of one of its checkpoints."""
        return layout.checkpoint_bytes if self.kind == DENSE else Codec(layout, self.plan, element=self.element).nbytes

    def options(self, base: EngineOptions, checkpoints: int) -> EngineOptions:
        """An engine's options with room for so many checkpoints, beside what runs, and none of another kind.

        In every arm they are of whole prompts but their last token, and of nothing else.
        """
        running = base.max_running + 1
        packed = self.kind != DENSE
        options = replace(
            base,
            plan=self.plan,
            refresh=self.refresh,
            element=self.element,
            # replays need a slot to work in
            native_slots=running + (int(self.refresh == "suffix") if packed else checkpoints),
            packed_slots=checkpoints if packed else None,
        )
        # where prompts branch, dense states would take the room of other prompts' checkpoints
        return replace(replayable(options), policy=AllButLast())


def arms_of(kinds: Sequence[str], plans: Mapping[int, RetentionPlan]) -> list[Arm]:
    """Every arm of some kinds, in their order, at every cutoff where there is one.

    Args:
        kinds: of `KINDS`.
        plans: retention plans by W_max.

    Raises:
        ConfigError: there is no kind, one is unknown, or one needs a cutoff and there is none.
    """
    if not kinds:
        raise ConfigError(f"there is no arm to run; choose among {', '.join(KINDS)}")
    found = []
    for kind in dict.fromkeys(kinds):
        if kind not in KINDS:
            raise ConfigError(f"there is no arm {kind!r}; choose among {', '.join(KINDS)}")
        if kind in _KINDS and not plans:
            raise ConfigError(f"arm {kind} needs a retention cutoff: give --wmax")
        if kind == DENSE:
            found.append(Arm(kind))
        elif kind == "int8":
            found.append(Arm(kind, element="int8"))
        else:
            found += [arm for plan in plans.values() for arm in _at(kind, plan)]
    return found


def _at(kind: str, plan: RetentionPlan) -> list[Arm]:
    refresh, element = _KINDS[kind]
    if kind == "random":
        return [Arm(kind, plan.random_like(seed), refresh, element, seed) for seed in SEEDS]
    return [Arm(kind, plan, refresh, element)]
