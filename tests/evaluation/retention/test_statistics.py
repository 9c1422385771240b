import math

import pytest
import torch

from holdover.evaluation.retention.points import kl_divergence, layer_errors, percentile
from holdover.evaluation.retention.statistics import (
    Quartiles,
    bootstrap_mean,
    bootstrap_ratio,
    quartiles,
    ranks,
    spearman,
)


def test_ranks_share_their_mean_among_equals() -> None:
    assert ranks(torch.tensor([10.0, 5.0, 10.0, 1.0])).tolist() == [3.5, 2.0, 3.5, 1.0]


@pytest.mark.parametrize(
    ("x", "y", "want"),
    [
        # IQ and hours of television, the textbook example: 1 - 6 * 194 / (10 * 99)
        (
            [106, 86, 100, 101, 99, 103, 97, 113, 112, 110],
            [7, 0, 27, 50, 28, 29, 20, 12, 6, 17],
            -29 / 165,
        ),
        ([1, 2, 3], [10, 100, 1000], 1.0),
        ([1, 2, 3], [3, 2, 1], -1.0),
        # ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4: 4.5 / sqrt(4.5 * 5)
        ([1, 2, 2, 3], [1, 2, 3, 4], 4.5 / math.sqrt(22.5)),
    ],
)
def test_spearman(x: list[float], y: list[float], want: float) -> None:
    assert spearman(torch.tensor(x).float(), torch.tensor(y).double()) == pytest.approx(want)


def test_spearman_of_a_constant_is_not_a_number() -> None:
    assert math.isnan(spearman(torch.ones(4), torch.arange(4.0)))


def test_quartiles_leave_out_what_is_not_a_number() -> None:
    assert quartiles([4.0, math.nan, 1.0, 2.0, 3.0, 5.0]) == Quartiles(3.0, 2.0, 4.0, 5)
    assert quartiles([math.nan]) is None


def test_bootstrap_interval_holds_the_mean_and_narrows_with_more_values() -> None:
    values = torch.randn(400, generator=torch.Generator().manual_seed(0))
    low, high = bootstrap_mean(values)
    assert low < float(values.mean()) < high
    # the normal interval of as many values
    assert high - low == pytest.approx(2 * 1.96 * float(values.std()) / 20, rel=0.15)
    few_low, few_high = bootstrap_mean(values[:50])
    assert few_high - few_low > high - low


def test_bootstrap_ratio_resamples_pairs_and_leaves_out_what_has_no_reference() -> None:
    reference = torch.tensor([1.0, 0.0, 3.0, 5.0])
    # where every pair has one ratio, nothing is left to chance
    assert bootstrap_ratio(reference / 4, reference) == (0.25, 0.25)
    low, high = bootstrap_ratio(torch.tensor([1.0, 0.0, 0.0, 0.0]), torch.tensor([1.0, 1.0, 1.0, 1.0]))
    assert low == 0 < 0.25 < high < 1
    # of two values, every fourth sample has none that counts
    low, high = bootstrap_ratio(torch.tensor([0.0, 1.0]), torch.tensor([0.0, 2.0]))
    assert (low, high) == (0.5, 0.5)


@pytest.mark.parametrize(("share", "want"), [(0.95, 19.0), (0.96, 20.0), (0.05, 1.0), (1.0, 20.0), (0.0, 1.0)])
def test_percentile_is_a_value_that_so_many_do_not_exceed(share: float, want: float) -> None:
    assert percentile(torch.arange(20.0, 0, -1), share) == want


def test_kl_against_its_definition() -> None:
    p, q = torch.tensor([0.5, 0.25, 0.25]), torch.tensor([0.25, 0.25, 0.5])
    # logits are free up to a constant
    assert float(kl_divergence(p.log() + 3, q.log() - 1)) == pytest.approx(0.25 * math.log(2), rel=1e-5)
    assert float(kl_divergence(p.log(), p.log())) == 0
    assert math.isnan(kl_divergence(p.log(), torch.full((3,), math.nan)))


def test_layer_errors_are_relative() -> None:
    wanted = [torch.tensor([3.0, 4.0]), torch.tensor([1.0])]
    assert layer_errors([torch.tensor([0.0, 4.0]), torch.tensor([1.0])], wanted).tolist() == [0.6, 0.0]
