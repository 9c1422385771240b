import pytest

from holdover.arch.layout import KVLayout, ModelLayout, RecurrentLayer, StateLayout
from holdover.report.layout import layout_facts, layout_tables
from holdover.report.tables import ranges, ratio, size


def test_units_that_differ_are_listed() -> None:
    layers = [RecurrentLayer(i, "gdn", heads, 2, 8, 8, "head", 64, 4) for i, heads in enumerate((2, 4))]
    layout = ModelLayout("qwen3_5", StateLayout(tuple(layers)), KVLayout(()), 2, 8, 16, "bfloat16")
    facts = layout_facts("m", layout)
    assert facts["units_per_layer"] == [2, 4]
    assert facts["kv_bytes_per_token"] == 0
    recurrent, totals = layout_tables(layout)
    assert [row[3] for row in recurrent.rows] == ["2", "4 (2 key)"]
    assert totals.title == "per sequence"


@pytest.mark.parametrize(
    ("indices", "text"),
    [([3], "3"), ([0, 1, 2, 4], "0-2, 4"), (list(range(0, 20, 2)), "0, 2, ..., 18"), ([0, 2, 4, 6], "0, 2, 4, 6")],
)
def test_ranges(indices: list[int], text: str) -> None:
    assert ranges(indices) == text


def test_numbers() -> None:
    assert [size(count) for count in (999, 1000, 1_474_560, 2_500_000_000)] == [
        "999 B",
        "1.00 KB",
        "1.47 MB",
        "2.50 GB",
    ]
    assert [ratio(value) for value in (2.638, None, float("inf"))] == ["2.64x", "-", "-"]
