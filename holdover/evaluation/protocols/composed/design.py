"""What is run of every problem: the ways to choose recomputed tokens, and the states that prompts begin with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdover.chunks import INITIALISERS
from holdover.chunks.selectors import Seam
from holdover.engine.chunks.request import Window
from holdover.errors import ConfigError
from holdover.evaluation.chunks.bench import Workbench
from holdover.evaluation.chunks.inputs import SOURCES, Source
from holdover.evaluation.chunks.score import ALONE

# the paper's main budget, at which errors are compared layer by layer
MAIN_RATIO = 0.2
# the initial state that others are compared with, and the one that is taken apart
REFERENCE, EXACT = "last", "exact"


@dataclass(frozen=True)
class Selection:
    """One way to choose the tokens that are run again.

    Attributes:
        selector: a selector's name; ``full`` is an ordinary prefill.
        ratio: share of the chunks' tokens that it may choose; None where a window decides.
        window: tokens to each side of a seam; None where the ratio decides.
    """

    selector: str
    ratio: float | None = None
    window: int | None = None

    @property
    def name(self) -> str:
        """It among others of one run."""
        return f"{self.selector}-w{self.window}" if self.ratio is None else f"{self.selector}-r{self.ratio:g}"

    def choose(self, bench: Workbench) -> tuple[int, ...]:
        """Positions of the case that is open."""
        if self.ratio is None:
            return bench.choose(Seam(self.window), 0.0)
        return bench.choose(self.selector, self.ratio)


FULL, ALL, NONE = Selection("full", 1.0), Selection("all", 1.0), Selection("none", 0.0)


@dataclass(frozen=True)
class Arm:
    """One column of the comparison.

    Attributes:
        selection: what is run again.
        initialiser: which recurrent state prompts begin with; `ALONE` where it does not matter.
        source: of the inputs that composed maps are made of.
    """

    selection: Selection
    initialiser: str = ALONE
    source: Source = "isolated"

    @property
    def name(self) -> str:
        """It among others of one run."""
        parts = [self.selection.name, self.initialiser, *([self.source] if self.source != "isolated" else [])]
        return "/".join(parts)


@dataclass(frozen=True)
class Design:
    """What a run compares.

    Attributes:
        selectors: at every ratio.
        initialisers: on the same positions each.
        ratios: shares of the chunks' tokens.
        seam_windows: tokens to each side of a seam, for the sweep of LinearKV §4.4.
        conv_window: what recomputed tokens see in their conv windows.

    Raises:
        ConfigError: an initialiser would change the positions, or there is none of something.
    """

    selectors: tuple[str, ...]
    initialisers: tuple[str, ...]
    ratios: tuple[float, ...]
    seam_windows: tuple[int, ...] = ()
    conv_window: Window = "stream"

    def __post_init__(self) -> None:
        if not self.initialisers or not set(self.initialisers) <= INITIALISERS.keys():
            raise ConfigError(
                f"initial states are compared on the same positions: choose among {', '.join(INITIALISERS)}, not "
                f"{', '.join(self.initialisers) or 'none'}"
            )

    @property
    def selections(self) -> list[Selection]:
        """Nothing, every selector at every ratio, and every window."""
        swept = [Selection(name, ratio) for name in self.selectors for ratio in self.ratios]
        windows = [Selection("seam", window=window) for window in self.seam_windows]
        # the selector `none` with a ratio of 0 is the first
        return list(dict.fromkeys([NONE, *swept, *windows]))

    @property
    def scored(self) -> list[Arm]:
        """Arms whose answers are scored: a full prefill, everything recomputed, and every initial state everywhere."""
        return [Arm(FULL), Arm(ALL), *self._each(self.selections)]

    @property
    def compared(self) -> list[Arm]:
        """Arms whose layers are compared: as constructed, at the main budget, and composed of other inputs."""
        arms = self._each([NONE, *(Selection(name, MAIN_RATIO) for name in self.selectors)])
        others = [Arm(NONE, EXACT, source) for source in SOURCES if source != "isolated"]
        return [*arms, *(others if EXACT in self.initialisers else [])]

    def _each(self, selections: Sequence[Selection]) -> list[Arm]:
        return [Arm(selection, initialiser) for selection in selections for initialiser in self.initialisers]
