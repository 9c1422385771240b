"""Tables of what `decode.py` measured."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks import common
from benchmarks.common import Row
from benchmarks.decode_methods import Scale

# DeltaLog's own errors (Section 5.5), which a method must not exceed
OUTPUT_LIMIT = 4.6e-3
STATE_LIMIT = {"kda": 5e-4}
OTHER_STATE_LIMIT = 1e-6

# methods of others, by the column that shows the fastest of them
OTHERS = {
    "compile": ("torch-compile",),
    "fla": ("fla",),
    "vllm": ("vllm",),
    "vllm*": ("vllm-replay",),
    "sglang": ("sglang", "sglang-triton"),
    "sglang*": ("sglang-replay",),
}


def print_checks(rows: Sequence[Row]) -> None:
    lines = []
    for row in rows:
        limit = STATE_LIMIT.get(row["op"], OTHER_STATE_LIMIT)
        met = row["output"] <= OUTPUT_LIMIT and max(row["state"], row["state_after_drafts"]) <= limit
        errors = [f"{row[x]:.1e}" for x in ("output", "state", "state_after_drafts")]
        lines.append([row["op"], *errors, f"{OUTPUT_LIMIT:g}, {limit:g}", "yes" if met else "NO"])
    common.print_table("Relative error against float64", ["op", "output", "state", "+ drafts", "aim", "met"], lines)


def print_main(rows: Sequence[Row]) -> None:
    """A line for each operator and batch: every method at its best, then ours against others and what bytes allow."""
    times, ratios = [], []
    for (op, batch), cell in grouped(rows).items():
        ours = [x for x in cell if x["method"] == "holdover" and x["fill"] is None]
        if not ours:
            continue
        best = min(ours, key=lambda x: x["ms"])
        ms, name = best["ms"], f"{op} {batch}"
        floor, dense, staged, fla = (fastest(cell, x) for x in ("floor", "holdover-dense", "staged", "fla"))
        others = [fastest(cell, *methods) for methods in OTHERS.values()]
        rival = min((x for x in others if x is not None), default=None)
        # the read-once kernel's rate, applied to every byte that the method must move
        bound = floor and floor * (best["model_read"] + best["model_written"]) / best["state_bytes"]
        against = [*(x and x / ms for x in (fla, rival, dense, staged)), bound and ms / bound]
        times.append([name, *map(milliseconds, (floor, *others, staged, dense, ms, best["p99"]))])
        ratios.append([name, str(best["merge_interval"]), *map(factor, against)])
    columns = ["op B", "floor", *OTHERS, "staged", "dense", "ours", "p99"]
    common.print_table("ms for one step of one layer; * replays", columns, times)
    columns = ["op B", "M", "fla/ours", "fastest other/ours", "dense/ours", "staged/ours", "ours/bytes"]
    common.print_table("Ratios", columns, ratios)


def print_sweeps(rows: Sequence[Row], scale: Scale) -> None:
    """Merge intervals, fills and drafts at the sweep's batch sizes."""
    for (op, batch), cell in grouped(rows).items():
        if batch not in scale.sweep:
            continue
        mixed = [x for x in cell if x["method"] == "holdover" and x["fill"] is None]
        fills = [x for x in cell if x["method"] == "holdover" and x["fill"] is not None]
        drafts = [x for x in cell if x["method"] == "holdover-verify"]
        parts = [
            " ".join(f"M={x['merge_interval']}:{x['ms']:.4f}" for x in mixed),
            "M=8 at " + " ".join(f"fill {x['fill']}:{x['ms']:.4f}" for x in fills),
            "M=16 " + " ".join(f"T={x['drafts']}:{x['ms']:.4f}" for x in drafts),
        ]
        common.console.print(f"{op} B={batch}  " + "\n    ".join(parts), highlight=False)


def grouped(rows: Sequence[Row]) -> dict[tuple[str, int], list[Row]]:
    cells: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        if "batch" in row:
            cells.setdefault((row["op"], row["batch"]), []).append(row)
    return cells


def fastest(cell: Sequence[Row], *methods: str) -> float | None:
    return min((row["ms"] for row in cell if row["method"] in methods), default=None)


def milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def factor(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
