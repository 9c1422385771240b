"""Results that nobody can weigh are refused, each for what it lacks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdover.errors import ConfigError
from holdover.report.quality.build import build
from holdover.report.quality.check import check
from holdover.report.quality.results import ModelResults, Results
from tests.report import quality_results

Files = dict[str, dict[str, Any]]


def wrong_with(files: Files) -> list[str]:
    return check(Results((ModelResults("small", files),)))


def test_what_the_protocols_write_passes() -> None:
    assert wrong_with(quality_results.everything()) == []


def no_compressed_load(files: Files) -> None:
    files["replay-text"]["rows"][1]["loaded"] = 0.0


def no_compressed_load_in_a_combination(files: Files) -> None:
    files["combinations"]["rows"][2]["work"]["loads"] = 0


def loads_not_counted(files: Files) -> None:
    del files["replay-text"]["rows"][2]["loaded"]


def no_count(files: Files) -> None:
    files["deferred"]["rows"][0]["count"] = 0


def no_interval(files: Files) -> None:
    del files["composed"]["rows"][0]["low"]


def interval_without_an_end(files: Files) -> None:
    files["composed"]["rows"][0]["high"] = float("nan")


def interval_the_wrong_way_round(files: Files) -> None:
    files["composed"]["rows"][0] |= {"low": 2.0, "high": 1.0}


def no_digest(files: Files) -> None:
    del files["combinations"]["model"]


def other_weights(files: Files) -> None:
    files["deferred"]["model"] = "beef:float32"


def nothing_logged(files: Files) -> None:
    files["deferred"]["overall"][0]["appended"] = 0


def no_rows(files: Files) -> None:
    files["composed"]["rows"] = []


def no_protocol(files: Files) -> None:
    for name in ("replay-text", "composed", "deferred", "combinations"):
        del files[name]


@pytest.mark.parametrize(
    ("breaking", "message"),
    [
        (no_compressed_load, "small/replay-text, row 2 (text, nll, nr, 16): the arm made no compressed load"),
        (
            no_compressed_load_in_a_combination,
            "small/combinations, row 3 (nr-w16/deferred/off, nr, 16, deferred, off): the arm made no compressed load",
        ),
        (loads_not_counted, "small/replay-text, row 3 (text, nll, int8): the arm made no compressed load"),
        (no_count, "small/deferred, row 1 (m8-bf16/fp32, bf16/fp32): no count of instances"),
        (no_interval, "small/composed, row 1 (recall, kl, full): no interval"),
        (interval_without_an_end, "small/composed, row 1 (recall, kl, full): no interval"),
        (interval_the_wrong_way_round, "small/composed, row 1 (recall, kl, full): no interval"),
        (no_digest, "small/combinations: no digest of the model"),
        (other_weights, "small: measured with different weights in small/combinations and small/deferred"),
        (nothing_logged, "small/deferred, m8-bf16/fp32: no token went to the arm's log"),
        (no_rows, "small/composed: no rows"),
        (no_protocol, "small: no protocol was run on it"),
    ],
)
def test_every_lack_is_named(breaking: Callable[[Files], None], message: str, tmp_path: Path) -> None:
    files = quality_results.everything()
    breaking(files)
    assert wrong_with(files) == [message]
    quality_results.write(tmp_path / "results" / "small", files)
    with pytest.raises(ConfigError) as caught:
        build(tmp_path / "results", tmp_path / "pages")
    assert message in str(caught.value)
    assert not (tmp_path / "pages").exists()


def test_dense_arms_load_nothing_that_is_compressed() -> None:
    files = quality_results.everything()
    files["replay-text"]["rows"][0]["loaded"] = 0.0
    files["combinations"]["rows"][0]["work"]["loads"] = 0
    assert wrong_with(files) == []
