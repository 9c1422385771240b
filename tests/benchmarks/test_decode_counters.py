"""What `ncu` prints becomes rows: messages and units are passed over, layers are grouped by view."""

from __future__ import annotations

import pytest

from tests.interpreter import require_triton

require_triton()
# a source distribution comes without the benchmarks
counters = pytest.importorskip("benchmarks.decode_counters")

PAGE = """==PROF== Connected to process 7
==PROF== Profiling "step_kernel" - 0: 0%....50%....100% - 1 pass
"ID","Process ID","Kernel Name","Context","dram__bytes_read.sum","dram__bytes_write.sum"
"","","","","byte","byte"
"0","7","step_kernel","1","268,435,456","1024"
"1","7","step_kernel","1","300","5"
==PROF== Disconnected from process 7
"""


def test_counters_are_read_from_the_raw_page() -> None:
    assert list(counters.counted(PAGE.splitlines())) == [(268435456, 1024), (300, 5)]
    assert list(counters.counted(["==ERROR== ERR_NVGPUCTRPERM"])) == []


def test_rows_of_a_view_and_of_a_cycle() -> None:
    # dense, then ours at the three fills; two layers each
    found = [[(100, 90), (102, 92)], [(10, 1), (10, 1)], [(16, 1), (16, 1)], [(20, 80), (20, 80)]]
    rows = list(counters.rows_of("mamba2", 64, found))
    assert [(x["method"], x["fill"]) for x in rows] == [
        ("holdover-dense", None),
        ("holdover", 0),
        ("holdover", 6),
        ("holdover", 7),
        ("holdover", None),
    ]
    assert (rows[0]["dram_read"], rows[0]["dram_write"]) == (101, 91)
    assert rows[-1]["dram_read"] == (7 * 13 + 20) / 8
    assert rows[-1]["dram_write"] == (7 * 1 + 80) / 8
    states = 4 * 64 * 64 * 128 * 64
    assert rows[0]["model_written"] == states
    assert rows[1]["model_read"] == states
