import json
import math
from dataclasses import replace

import pytest
import torch

from holdover.arch.layout import KVLayout, ModelLayout, RecurrentLayer, StateLayout
from holdover.errors import PlanError
from holdover.report.retention import RetentionReport, retention_facts
from holdover.report.retention_tables import retention_tables
from holdover.retention.decay import read_decay
from holdover.weights.source import open_files
from tests.report.build import kept, model_of, model_with

TINY = read_decay(open_files("tiny-gdn"))
WINDOW_KEYS = {
    *("w_max", "retained", "retained_fraction", "r_mean", "r_max", "mixed_pairs", "layer_fraction"),
    *("c_temp_ragged", "c_temp_padded", "c_ckpt", "c_ckpt_padded", "c_ckpt_int8"),
    *("checkpoint_bytes", "checkpoint_bytes_int8", "tp"),
}


def uneven(heads: int = 6) -> ModelLayout:
    layer = RecurrentLayer(0, "kda", heads, heads, 4, 8, "channel", 16, 4)
    return ModelLayout("kimi_linear", StateLayout((layer, replace(layer, index=1))), KVLayout(()), 2, 8, 16, "bfloat16")


@pytest.mark.parametrize("w_max", [16, 64, 512])
def test_figures_of_the_bundled_model_by_their_formulas(w_max: int) -> None:
    (window,) = retention_facts(RetentionReport.of(TINY, [w_max]))["windows"]
    assert window.keys() == WINDOW_KEYS
    state = TINY.layout.state
    counts = [int((horizons > w_max).sum()) for horizons in TINY.horizons()]
    unit, conv = state.temporal_bytes / 48, state.conv_bytes
    assert window["retained"] == sum(counts)
    assert window["retained_fraction"] == sum(counts) / 48
    assert (window["r_mean"], window["r_max"]) == (sum(counts) / 6, max(counts))
    assert window["mixed_pairs"] == 0
    assert window["layer_fraction"] == {"min": min(counts) / 8, "max": max(counts) / 8}
    # Eq. 6 and App. B
    assert window["c_temp_ragged"] == pytest.approx(48 / sum(counts))
    assert window["c_temp_padded"] == pytest.approx(48 / (6 * max(counts)))
    assert window["c_ckpt"] == pytest.approx((48 * unit + conv) / (sum(counts) * unit + conv))
    assert window["c_ckpt_padded"] == pytest.approx((48 * unit + conv) / (6 * max(counts) * unit + conv))
    assert window["checkpoint_bytes"] == sum(counts) * unit + conv
    # a quarter of the bytes, and a scale of 4 bytes for each of a head's 64 rows
    assert window["checkpoint_bytes_int8"] == sum(counts) * (unit / 4 + 4 * 64) + conv


def test_the_papers_kimi_linear_ratios() -> None:
    """Retained 0.357 of the channels: 2.64 times smaller, 8.14 times with INT8 and its scales."""
    report = RetentionReport.of(model_of("kimi-linear-48b-a3b", lambda layer: kept(layer, 1462)), [16])
    (window,) = report.windows
    assert round(window.summary.retained_fraction, 3) == 0.357
    assert (round(window.ratios.c_ckpt, 2), round(window.ratios.c_ckpt_int8, 2)) == (2.64, 8.14)
    assert window.summary.mixed_pairs == 1
    assert report.calibrated
    assert report.notes == []


def test_imbalance() -> None:
    # everything that lasts is in the first half of the heads
    report = RetentionReport.of(
        model_of("kimi-linear-48b-a3b", lambda layer: torch.tensor([1000.0, 2.0]).repeat_interleave(layer.units // 2)),
        [16],
    )
    (window,) = report.windows
    assert window.imbalance == {
        1: {"off": 1, "storage": 1, "hybrid": 1},
        2: {"off": 2, "storage": 1, "hybrid": 1},
        4: {"off": 2, "storage": 1, "hybrid": 1},
        8: {"off": 2, "storage": 1, "hybrid": 1},
    }


def test_quantised_weights_are_not_permuted() -> None:
    decay = model_of("kimi-linear-48b-a3b", lambda layer: kept(layer, 100))
    notes = RetentionReport.of(decay, [16, 64], quantised=True).notes
    assert len(notes) == 4
    assert all("quantised" in note for note in notes)


def test_a_split_that_is_not_possible_is_null() -> None:
    report = RetentionReport.of(model_with(uneven(), lambda layer: kept(layer, 7)), [16])
    facts = retention_facts(report)
    tp = facts["windows"][0]["tp"]
    assert (tp["4"], tp["8"]) == ({"off": None, "storage": None, "hybrid": None},) * 2
    assert all(value >= 1 for value in tp["2"].values())
    assert any("4 ranks cannot share the 6 heads" in note for note in facts["notes"])
    assert retention_tables(report)[-1].rows[0][3:] == ("-", "-")


def test_nothing_retained_is_still_json() -> None:
    report = RetentionReport.of(model_with(uneven(), lambda layer: kept(layer, 7)), [16, 2000])
    facts = json.loads(json.dumps(retention_facts(report, full=True), allow_nan=False))
    empty = facts["windows"][1]
    assert (empty["retained"], empty["c_temp_ragged"], empty["c_temp_padded"]) == (0, None, None)
    assert math.isfinite(empty["c_ckpt"])
    assert all(retention_tables(report)[2].rows[1])


def test_horizons_come_with_full_facts_alone() -> None:
    report = RetentionReport.of(TINY, [16])
    assert "horizons" not in retention_facts(report)
    assert retention_facts(report, full=True)["horizons"] == [layer.tolist() for layer in TINY.horizons()]


@pytest.mark.parametrize(
    ("name", "gate_input", "calibrated"),
    [("qwen3_next", None, True), ("qwen3_next", -0.3, True), ("qwen3_next", 0.5, False), ("qwen3_5", None, False)],
)
def test_uncalibrated_gate_inputs_are_marked(name: str, gate_input: float | None, calibrated: bool) -> None:
    report = RetentionReport.of(replace(TINY, architecture=name), [16], gate_input=gate_input)
    assert retention_facts(report)["gate"]["calibrated"] == calibrated
    marked = [note for note in report.notes if note.startswith("uncalibrated")]
    assert len(marked) == (not calibrated)


def test_a_cutoff_that_is_too_small() -> None:
    with pytest.raises(PlanError, match="w_max is 3"):
        RetentionReport.of(TINY, [16, 3])


def test_tables() -> None:
    horizons, counts, sizes, imbalance = retention_tables(RetentionReport.of(TINY, [16, 64]))
    assert [row[0] for row in horizons.rows] == ["0", "1", "2", "4", "5", "6"]
    assert horizons.columns[-2:] == ("kept at 16", "kept at 64")
    assert (len(counts.rows), len(sizes.rows), len(imbalance.rows)) == (2, 2, 6)
    for table in (horizons, counts, sizes, imbalance):
        assert {len(row) for row in table.rows} == {len(table.columns)}
    first = TINY.horizons()[0]
    assert horizons.rows[0][1] == f"{float(first.min()):.1f}"
    assert horizons.rows[0][5] == f"{float(first.max()):,.0f}"
