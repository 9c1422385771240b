"""Figures of composed contexts, and which point of a sweep is chosen."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from holdover.engine.chunks.gate import ChunkPoint
from holdover.evaluation.chunks.case import Cut
from holdover.evaluation.chunks.sweep import Choice, Samples, choose, measure, probe_cost, ways
from tests.engine.harness import host_of, prompt_of

CUT = Cut(contexts=2, chunks=2, tokens=16, query=3, following=4)
POINT = ChunkPoint("epic", "last", 0.2, "stream", 0.2, 0.01, 0.005, 0.02, 0.04, 0.02, 100.0, 5.0)


def test_every_way_is_measured() -> None:
    host = host_of("qwen3_5")
    choices = [*ways(["none", "cacheblend", "prophetkv"], ["last", "seams"], [0.5], ["stream", "context"])]
    choices.append(Choice("all", "last", 1.0, "stream"))
    *_, found = measure(host, CUT.cases(prompt_of(2 * CUT.piece), 512), choices)
    points = {samples.choice: samples.point() for samples in found.samples}
    assert list(points) == choices
    assert len(found.full_seconds) == 2
    for choice, point in points.items():
        assert (point.selector, point.initialiser, point.ratio, point.window) == (
            choice.selector,
            choice.initialiser,
            choice.ratio,
            choice.window,
        )
        assert point.low <= point.mean_kl <= point.high
    # everything run again costs nothing but round-off; a wrong state shows
    assert points[choices[-1]].p95_kl < 1e-6
    assert points[Choice("none", "last", 0.0, "stream")].mean_kl > 1e-6
    assert points[Choice("none", "last", 0.0, "stream")].cost == 0
    assert points[Choice("prophetkv", "last", 0.5, "context")].cost == 16 + 3
    assert all(samples.kl[0].shape == (4,) for samples in found.samples)


def test_ways_that_differ() -> None:
    found = ways(["none", "epic"], ["last", "seams"], [0.1, 0.2], ["stream", "context"])
    assert len(found) == len(set(found)) == 2 + 2 * (2 + 1)
    assert Choice("none", "last", 0.0, "stream") in found
    assert Choice("epic", "seams", 0.1, "context") not in found


def test_probes_are_part_of_the_cost() -> None:
    layout = host_of("qwen3_5").layout
    (case, _) = CUT.cases(prompt_of(2 * CUT.piece), 512)
    first = min(layer.index for layer in layout.kv.layers)
    assert probe_cost("epic", case, layout) == 0
    assert probe_cost("prophetkv", case, layout) == 3
    assert probe_cost("cacheblend", case, layout) == pytest.approx(32 * (first + 1) / layout.num_layers)


def test_the_cheapest_that_passes_is_chosen() -> None:
    dear = replace(POINT, ratio=0.4, cost=200.0, p95_kl=0.001)
    exact = replace(POINT, initialiser="exact", mean_kl=0.001)
    over = replace(POINT, selector="none", cost=0.0, p95_kl=0.06)
    assert choose([dear, over, exact, POINT], 0.05) == POINT
    assert choose([dear, over, exact], 0.05) == exact
    assert choose([dear, over], 0.05) == dear
    assert choose([over], 0.05) is None
    assert choose([replace(POINT, mean_kl=float("nan"))], 0.05) is None


def test_figures_of_a_point() -> None:
    kl = [torch.tensor([0.0, 1.0]), torch.tensor([2.0, 3.0])]
    samples = Samples(Choice("epic", "last", 0.2, "stream"), kl, [0.1, 0.3], [10.0, 20.0], [0.001, 0.003])
    point = samples.point()
    assert (point.mean_kl, point.p95_kl, point.first_kl) == (1.5, 3.0, 1.0)
    assert (point.recomputed, point.cost, point.ms) == pytest.approx((0.2, 15.0, 2.0))
    assert (point.low, point.high) == (0.5, 2.5)
