"""From runs of `serve.py` to one file with predictions beside them, and a table.

    python -m benchmarks.serve_report RESULTS... [--out FILE] [--fill]

Predictions come from `holdover simulate`'s own code, on the same trace and budget, with the costs that the measuring
call measured. ``--fill`` simulates the rest of the paper's grid; such rows say so.
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks import common
from benchmarks.common import RESULTS, Row
from benchmarks.serve_grid import groups, setup_of
from benchmarks.serve_simulated import filled, predicted
from holdover.errors import HoldoverError
from holdover.evaluation.latency import mean

MEANS = ("ttft_mean_ms", "ttft_p95_ms", "e2e_mean_ms", "e2e_p95_ms", "hit")
_ABOUT = ("weights", "layers", "published_layers")


def means(rows: Sequence[Row]) -> dict[str, float]:
    """Each statistic averaged over the runs of one server: requests of different runs are never pooled."""
    return {name: mean([row[name] for row in rows]) for name in MEANS}


def ranges(rows: Sequence[Row]) -> dict[str, tuple[float, float]]:
    """The least and the greatest of each statistic among the runs of one server."""
    values = {name: [row[name] for row in rows] for name in MEANS}
    return {name: (min(found), max(found)) for name, found in values.items()}


def compared(rows: Sequence[Row]) -> list[Row]:
    """Every server's means and ranges, and what changes from the dense one's means, by the same seeds and call."""
    every, found = groups(rows), []
    for (setup, call), own in every.items():
        line = asdict(setup) | means(own) | {"runs": len(own), "seeds": sorted(row["seed"] for row in own)}
        line |= {name: own[0][name] for name in ("slots", "slots_of", "call")}
        line |= {"range": ranges(own), "predicted": own[0].get("predicted")}
        dense = replace(setup, arm="dense", w_max=None, element="full", placement="off")
        theirs = {row["seed"]: row for row in every.get((dense, call), [])}
        same = [row for row in own if row["seed"] in theirs]
        if same and setup != dense:
            ours, base = means(same), means([theirs[row["seed"]] for row in same])
            line["change"] = {name: ours[name] / base[name] - 1 for name in MEANS if name != "hit"}
        found.append(line)
    return found


def described(rows: Sequence[Row], models: Sequence[dict[str, Any]]) -> list[Row]:
    """The same with what each server's model is."""
    said = {model["name"]: {x: model[x] for x in _ABOUT if x in model} for model in models}
    return [line | said.get(line["model"], {}) for line in compared(rows)]


def show(rows: Sequence[Row]) -> None:
    """Print every server's means."""
    calls = list(dict.fromkeys(row["call"] for row in rows))
    lines = [(*_line(line), str(calls.index(line["call"]) + 1)) for line in compared(rows)]
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
        "call",
    )
    common.print_table("Serving at one state budget (means over runs; changes against dense)", columns, lines)
    for number, call in enumerate(calls, 1):
        common.console.print(f"call {number}: {call}")


def _line(line: Row) -> tuple[str, ...]:
    setup = setup_of(line)
    parts = [setup.model, setup.name, *([f"x{setup.ranks}"] if setup.ranks > 1 else [])]
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
    parser.add_argument("results", nargs="+", type=Path, help="files that serve.py wrote")
    parser.add_argument("--out", type=Path, default=RESULTS / "serve.json", help="file to write (%(default)s)")
    parser.add_argument("--recording", type=Path, help="what was asked, unless it comes with Holdover or was pasted")
    parser.add_argument("--fill", action="store_true", help="simulate the rest of the paper's grid as well")
    options = parser.parse_args()
    try:
        document = merged([read(path) for path in options.results])
        rows = predicted(document["rows"], document["models"], options.recording)
        document["simulated"] = (
            filled(rows, document["models"], options.recording) if options.fill else document.get("simulated", [])
        )
    except HoldoverError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    document["rows"] = rows
    document["compared"] = described(rows, document["models"])
    show(rows)
    options.out.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    common.console.print(f"wrote {options.out}")
    return 0


def read(path: Path) -> dict[str, Any]:
    """A file of results.

    Raises:
        HoldoverError: it is not there, or is none of `serve.py`.
    """
    try:
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        is_known = all("call" in row for row in [*document["models"], *document["rows"]])
    except OSError as error:
        raise HoldoverError(f"{path} cannot be read ({error.strerror}): benchmarks/serve.py writes results") from error
    except (ValueError, KeyError, TypeError):
        is_known = False
    if not is_known:
        raise HoldoverError(f"{path} holds no results of benchmarks/serve.py, or does not say of which call they are")
    return document


def merged(documents: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One file of several that were measured by the same code on machines of one kind.

    Raises:
        HoldoverError: they were not.
    """
    first = documents[0]
    for other in documents[1:]:
        for name, value in _alike(first).items():
            if (found := _alike(other)[name]) != value:
                raise HoldoverError(f"the results differ in {name}: {value} and {found}")
    every = [model for document in documents for model in document["models"]]
    # of shards that ran together, one that has costs is kept
    models = {(model["name"], model["call"]): model for model in sorted(every, key=lambda model: "costs" in model)}
    rows = {(setup_of(row), row["call"], row["seed"]): row for document in documents for row in document["rows"]}
    return first | {"models": list(models.values()), "rows": list(rows.values())}


def _alike(document: dict[str, Any]) -> dict[str, Any]:
    machine = document["machine"]
    facts = {name: document[name] for name in ("versions", "commit")}
    return facts | {"processor": machine["cpu"], "GPUs": sorted(set(machine.get("gpus", [])))}


if __name__ == "__main__":
    sys.exit(main())
