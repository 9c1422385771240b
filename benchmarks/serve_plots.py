"""The paper's Figure 4 from results of `serve.py`: capacity, TTFT and E2E by arm, and both against the server limit.

python -m benchmarks.serve_plots [RESULTS] [--out FOLDER]
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Collection, Sequence
from itertools import count, product
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from benchmarks import common
from benchmarks.common import RESULTS, ROOT, Row
from benchmarks.serve_grid import PAPERS, setup_of
from benchmarks.serve_report import compared, read
from holdover.errors import HoldoverError

PICTURES = ROOT / "docs" / "serving"
_PANELS = (("slots", "state slots"), ("ttft_mean_ms", "mean TTFT, s"), ("e2e_mean_ms", "mean E2E, s"))
_COLORS = {"dense": "0.45", "nr": "tab:blue", "wr": "tab:orange"}
_HATCHES = {"storage": "//", "hybrid": "xx"}


def label(line: Row) -> str:
    """A server's arm in few words."""
    name = setup_of(line).name
    return name if line["arm"] == "dense" else name[:2].upper() + name[2:]


def scaled(value: float, name: str) -> float:
    """A value of that name in the unit of its panel."""
    return value / (1000 if name.endswith("_ms") else 1)


def bars(lines: Sequence[Row], title: str, path: Path) -> None:
    """One panel for each of capacity, TTFT and E2E: for each arm, with its runs, their mean and their range."""
    figure, axes = plt.subplots(1, len(_PANELS), figsize=(11, 2.8), layout="constrained")
    for axis, (name, what) in zip(axes, _PANELS, strict=True):
        for place, line in enumerate(lines):
            color, hatch = _COLORS[line["arm"]], _HATCHES.get(line["placement"], "")
            axis.bar(place, scaled(line[name], name), color=color, hatch=hatch, edgecolor="white")
            if line["runs"] > 1 and name in line["range"]:
                ends = [scaled(end, name) for end in line["range"][name]]
                axis.plot([place] * 2, ends, color="black", linewidth=1)
        names = [f"{label(line)} ({line['runs']})" for line in lines]
        axis.set_xticks(range(len(lines)), names, rotation=40, ha="right", fontsize=8)
        axis.set_title(what, fontsize=9)
    _save(figure, title, path)


def curves(lines: Sequence[Row], by: str, title: str, path: Path) -> None:
    """TTFT and E2E, means and 95th percentiles, of each arm against ``by``."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3), layout="constrained")
    for axis, kind in zip(axes, ("ttft", "e2e"), strict=True):
        for arm in dict.fromkeys(label(line) for line in lines):
            own = sorted((line for line in lines if label(line) == arm), key=lambda line: float(line[by]))
            at, color = [line[by] for line in own], _COLORS[own[0]["arm"]]
            for name, style in ((f"{kind}_mean_ms", {"ls": "-", "label": arm}), (f"{kind}_p95_ms", {"ls": ":"})):
                axis.plot(at, [scaled(line[name], name) for line in own], marker="o", color=color, **style)
        axis.set_title(f"{kind.upper()}, s: mean (solid) and P95 (dotted)", fontsize=9)
        axis.set_xlabel({"server_limit": "requests that run together", "share": "budget ÷ working set"}[by], fontsize=8)
        axis.set_xticks(sorted({line[by] for line in lines}))
        axis.set_ylim(bottom=0)
    axes[0].legend(fontsize=8)
    _save(figure, title, path)


def draw(document: dict[str, Any], folder: Path) -> list[Path]:
    """All pictures of a file of results; their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    lines, drawn = compared(document["rows"]), list[Path]()
    for about in document["models"]:
        name, scale = about["name"], about["scale"]
        own = [line for line in lines if (line["model"], line["call"]) == (name, about["call"])]
        share, limit = scale["shares"][0], scale["limits"][0]
        weights = f"{name}, {about['weights']} weights"
        for ranks in sorted({line["ranks"] for line in own}):
            main = [x for x in own if (x["ranks"], x["share"], x["server_limit"]) == (ranks, share, limit)]
            if len(main) > 1:
                path = _path(folder, f"{name}-arms" if ranks == 1 else f"{name}-ranks-{ranks}", drawn)
                bars(main, f"{weights}, limit {limit}, budget {share:.3g} of the working set", path)
                drawn.append(path)
        alone = [line for line in own if line["ranks"] == 1]
        orders = dict.fromkeys(setup_of(line).eviction for line in alone)
        for order, (by, fixed, value) in product(
            orders, (("server_limit", "share", share), ("share", "server_limit", limit))
        ):
            varied = [line for line in alone if (line[fixed], setup_of(line).eviction) == (value, order)]
            several = {label(line) for line in varied if line[by] != {"server_limit": limit, "share": share}[by]}
            if several:
                stem = f"{name}-{by.replace('_', '-')}" + ("" if order == PAPERS else f"-{order}")
                path = _path(folder, stem, drawn)
                curves([line for line in varied if label(line) in several], by, weights, path)
                drawn.append(path)
    return drawn


def _path(folder: Path, stem: str, drawn: Collection[Path]) -> Path:
    """A file that no other call's picture has."""
    names = (f"{stem}.png" if number == 1 else f"{stem}-call-{number}.png" for number in count(1))
    return next(path for name in names if (path := folder / name) not in drawn)


def _save(figure: Any, title: str, path: Path) -> None:
    figure.suptitle(title, fontsize=10)
    # dates would make every picture another file
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)


def main() -> int:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("results", nargs="?", type=Path, default=RESULTS / "serve.json", help="(%(default)s)")
    parser.add_argument("--out", type=Path, default=PICTURES, help="folder of the pictures (%(default)s)")
    options = parser.parse_args()
    try:
        document = read(options.results)
    except HoldoverError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for path in draw(document, options.out):
        common.console.print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
