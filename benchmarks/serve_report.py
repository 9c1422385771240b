"""From runs of `serve.py` to one file with predictions beside them, and a table.

    python -m benchmarks.serve_report RESULTS... [--out FILE] [--fill]

Predictions come from `holdover simulate`'s own code, on the same trace and budget, with the costs that the measuring
program measured. ``--fill`` simulates the rest of the paper's grid; such rows say so.
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import common
from benchmarks.common import RESULTS, Row
from holdover.errors import HoldoverError
from holdover.evaluation.latency import mean

MEANS = ("ttft_mean_ms", "ttft_p95_ms", "e2e_mean_ms", "e2e_p95_ms", "hit")
# what two runs of one server have alike
SETUP = ("model", "arm", "w_max", "element", "placement", "ranks", "share", "server_limit")
_ABOUT = ("weights", "layers", "published_layers")


def groups(rows: Sequence[Row]) -> Iterator[tuple[Row, list[Row]]]:
    """The rows of each server, under what they have alike; in order of first appearance."""
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(row[name] for name in SETUP), []).append(row)
    for key, own in found.items():
        yield dict(zip(SETUP, key, strict=True)), own


def means(rows: Sequence[Row]) -> dict[str, float]:
    """Each statistic averaged over the runs of one server: requests of different runs are never pooled."""
    return {name: mean([row[name] for row in rows]) for name in MEANS}


def compared(rows: Sequence[Row]) -> list[Row]:
    """Every server's means, and how they differ from those of the dense one beside it over the same seeds."""
    every = [(setup, own) for setup, own in groups(rows)]
    found = []
    for setup, own in every:
        line = setup | means(own) | {"runs": len(own), "seeds": sorted(row["seed"] for row in own)}
        line |= {name: own[0][name] for name in ("slots", "slots_of")}
        line["predicted"] = own[0].get("predicted")
        beside = ("model", "ranks", "share", "server_limit")
        dense = next((o for s, o in every if s["arm"] == "dense" and all(s[n] == setup[n] for n in beside)), [])
        seeds = {row["seed"] for row in own}
        base = [row for row in dense if row["seed"] in seeds]
        if base and setup["arm"] != "dense":
            same = means([row for row in own if row["seed"] in {one["seed"] for one in base}])
            theirs = means(base)
            line["change"] = {name: same[name] / theirs[name] - 1 for name in MEANS if name != "hit"}
        found.append(line)
    return found


def described(rows: Sequence[Row], models: Sequence[dict[str, Any]]) -> list[Row]:
    """The same with what each server's model is."""
    said = {model["name"]: {x: model[x] for x in _ABOUT if x in model} for model in models}
    return [line | said.get(line["model"], {}) for line in compared(rows)]


def show(rows: Sequence[Row]) -> None:
    """Print every server's means."""
    lines = [_line(line) for line in compared(rows)]
    columns = (
        "arm",
        "share",
        "limit",
        "runs",
        "slots",
        "hit",
        "TTFT ms",
        "P95",
        "E2E ms",
        "P95",
        "TTFT",
        "E2E",
        "predicted",
    )
    common.print_table("Serving at one state budget (means over runs; changes against dense)", columns, lines)


def _line(line: Row) -> tuple[str, ...]:
    parts = [line["model"], line["arm"], *([] if line["w_max"] is None else [str(line["w_max"])])]
    parts += [x for x in (line["element"], line["placement"]) if x not in ("full", "off")]
    parts += [f"x{line['ranks']}"] if line["ranks"] > 1 else []
    slots = "+".join(str(count) for count in line["slots_of"].values())
    times = [f"{line[name]:,.0f}" for name in MEANS[:4]]
    change = line.get("change")
    changes = (
        ["", ""] if change is None else [f"{100 * change[name]:+.1f} %" for name in ("ttft_mean_ms", "e2e_mean_ms")]
    )
    share, limit, runs = f"{line['share']:.3g}", str(line["server_limit"]), str(line["runs"])
    return " ".join(parts), share, limit, runs, slots, f"{line['hit']:.3f}", *times, *changes, _predicted(line)


def _predicted(line: Row) -> str:
    """Hit share and TTFT of the simulation, with how far off the latter is."""
    found = line.get("predicted")
    if found is None:
        return ""
    error = found["ttft_mean_ms"] / line["ttft_mean_ms"] - 1
    return f"{found['hit']:.3f}, {found['ttft_mean_ms']:,.0f} ({100 * error:+.0f} %)"


def main() -> int:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("results", nargs="+", type=Path, help="files that serve.py wrote on one machine")
    parser.add_argument("--out", type=Path, default=RESULTS / "serve.json", help="file to write (%(default)s)")
    parser.add_argument("--fill", action="store_true", help="simulate the rest of the paper's grid as well")
    options = parser.parse_args()
    from benchmarks.serve_simulated import filled, predicted

    try:
        document = merged([json.loads(path.read_text(encoding="utf-8")) for path in options.results])
        rows = predicted(document["rows"], document["models"])
        document["simulated"] = filled(rows, document["models"]) if options.fill else document.get("simulated", [])
    except HoldoverError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    document["rows"] = rows
    document["compared"] = described(rows, document["models"])
    show(rows)
    options.out.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    common.console.print(f"wrote {options.out}")
    return 0


def merged(documents: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One file of several that were measured by the same code on machines of one kind.

    Raises:
        HoldoverError: they were not.
    """
    first = documents[0]
    for other in documents[1:]:
        for name in ("versions", "commit"):
            if other[name] != first[name]:
                raise HoldoverError(f"the results differ in {name}: {first[name]} and {other[name]}")
    models = {model["name"]: model for document in documents for model in document["models"] if "costs" in model}
    others = {model["name"]: model for document in documents for model in document["models"]}
    rows = {
        json.dumps([*(row[x] for x in SETUP), row["seed"]]): row for document in documents for row in document["rows"]
    }
    return first | {"models": list((others | models).values()), "rows": list(rows.values())}


if __name__ == "__main__":
    sys.exit(main())
