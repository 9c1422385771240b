"""What composed contexts cost on real text, at every way to compose them.

The text is cut into pieces: chunks, a query, and what follows. Every context is computed in full and composed in every
way, and the distributions after the query and after each following token are compared.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from holdover.arch.layout import ModelLayout
from holdover.chunks.selectors import SELECTORS
from holdover.engine.chunks.gate import ChunkPoint, extras_for
from holdover.engine.chunks.request import SEAMS, Window
from holdover.engine.host import Host
from holdover.evaluation.chunks.bench import Workbench, now
from holdover.evaluation.chunks.case import Case
from holdover.evaluation.retention.points import kl_divergence, percentile
from holdover.evaluation.retention.statistics import bootstrap_mean


@dataclass(frozen=True)
class Choice:
    """One way to compose a prompt; see `ChunkSettings`."""

    selector: str
    initialiser: str
    ratio: float
    window: Window


@dataclass
class Samples:
    """Measurements of one way to compose, an entry a context.

    Attributes:
        choice: the way.
        kl: KL in nats after the query and after each following token but the last, fp32 ``[following]`` each.
        recomputed: share of the chunks' tokens that was run again.
        cost: tokens run before the query.
        seconds: from chunks that are there to a state that the query can run from.
    """

    choice: Choice
    kl: list[Tensor] = field(default_factory=list)
    recomputed: list[float] = field(default_factory=list)
    cost: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def point(self) -> ChunkPoint:
        """The figures that a gate records."""
        kl = torch.stack(self.kl).double()
        low, high = bootstrap_mean(kl.mean(1))
        return ChunkPoint(
            selector=self.choice.selector,
            initialiser=self.choice.initialiser,
            ratio=self.choice.ratio,
            window=self.choice.window,
            recomputed=statistics.fmean(self.recomputed),
            mean_kl=float(kl.mean()),
            low=low,
            high=high,
            p95_kl=percentile(kl.flatten(), 0.95),
            first_kl=float(kl[:, 0].mean()),
            cost=statistics.fmean(self.cost),
            ms=1e3 * statistics.median(self.seconds),
        )


@dataclass
class Measured:
    """All samples of a sweep, and the seconds that each context took in full."""

    samples: list[Samples]
    full_seconds: list[float] = field(default_factory=list)


def ways(
    selectors: Sequence[str], initialisers: Sequence[str], ratios: Sequence[float], windows: Sequence[Window]
) -> list[Choice]:
    """Every combination that differs: what recomputes nothing has no ratio, and then or with seams no window."""
    return list(
        dict.fromkeys(
            Choice(
                selector,
                initialiser,
                0.0 if selector == "none" else ratio,
                "stream" if selector == "none" or initialiser == SEAMS else window,
            )
            for selector in selectors
            for ratio in ratios
            for initialiser in initialisers
            for window in windows
        )
    )


def measure(host: Host, cases: Sequence[Case], choices: Sequence[Choice]) -> Iterator[Measured]:
    """Measure some ways to compose: yields everything so far after each context.

    Positions are chosen once for each selector and ratio; what that takes counts for each of their initialisers.
    """
    extras = extras_for([choice.initialiser for choice in choices], [choice.window for choice in choices])
    bench = Workbench(host, cases, extras)
    found = Measured([Samples(choice) for choice in choices])
    for number, case in enumerate(cases):
        found.full_seconds.append(bench.open(case, number))
        exact = bench.exact()
        chosen: dict[tuple[str, float], tuple[tuple[int, ...], float]] = {}
        for samples in found.samples:
            choice = samples.choice
            key = (choice.selector, choice.ratio)
            if key not in chosen:
                start = now(host.device)
                chosen[key] = bench.choose(*key), now(host.device) - start
            positions, seconds = chosen[key]
            start = now(host.device)
            repair = bench.compose(positions, choice.initialiser, choice.window)
            samples.seconds.append(seconds + now(host.device) - start)
            samples.kl.append(kl_divergence(exact, bench.composed()).cpu())
            samples.recomputed.append(repair.ratio)
            samples.cost.append(len(repair.selected) + probe_cost(choice.selector, case, host.layout))
        yield found


def probe_cost(selector: str, case: Case, layout: ModelLayout) -> float:
    """Tokens that a selector has run before it chooses; those that pass some of the layers only count as their share.

    A probe of the context passes the layers below the first attention layer, and that layer.
    """
    probe = SELECTORS[selector]().probe
    if probe == "query":
        return len(case.query)
    if probe == "context" and layout.kv.layers:
        share = (min(layer.index for layer in layout.kv.layers) + 1) / layout.num_layers
        return share * (len(case) - len(case.query) - len(case.following))
    return 0.0


def choose(points: Sequence[ChunkPoint], budget: float) -> ChunkPoint | None:
    """The cheapest point whose P95 meets the budget: fewest tokens run, then fewest extras kept, then least KL.

    Args:
        points: what was measured.
        budget: largest acceptable P95 KL in nats.

    Returns:
        None if no point meets the budget.
    """
    # a few tokens without a distribution would not show in a percentile
    passing = [point for point in points if point.p95_kl <= budget and math.isfinite(point.mean_kl)]
    return min(passing, key=_rank, default=None)


def _rank(point: ChunkPoint) -> tuple[float, bool, bool, bool, float]:
    extras = extras_for([point.initialiser], [point.window])
    return point.cost, extras.inputs, extras.bodies, extras.transitions, point.mean_kl
