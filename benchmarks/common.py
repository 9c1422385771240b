"""What every benchmark shares: interleaved repeats, medians, a table, and a JSON file that says where and of what."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from argparse import ArgumentParser
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import holdover

T = TypeVar("T")
Row = dict[str, Any]

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
# a table that is piped to a file needs more than the 80 columns that rich then assumes
console = Console() if Console().is_terminal else Console(width=120)


@dataclass(frozen=True)
class Aim:
    """What a ratio or share should be: at least, or at most, a bound."""

    bound: float
    at_least: bool

    def met(self, value: float) -> bool:
        return value >= self.bound if self.at_least else value <= self.bound

    def __str__(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.bound:g}"


def arguments(name: str, description: str | None) -> ArgumentParser:
    """A parser with the flags that every benchmark has."""
    parser = ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="fewer repeats and smaller cells")
    parser.add_argument("--threads", type=int, default=2, help="threads that torch may use (default: %(default)s)")
    parser.add_argument(
        "--out", type=Path, default=RESULTS / f"{name}.json", help="file to write (default: %(default)s)"
    )
    return parser


@contextmanager
def progress(label: str, total: int) -> Iterator[Callable[[], None]]:
    """A progress bar on stderr; what it yields is to be called once for each of ``total`` pieces of work."""
    columns = (TextColumn("{task.description:<34}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bars:
        task = bars.add_task(label, total=total)
        yield lambda: bars.advance(task)


def interleaved(label: str, arms: Mapping[str, Callable[[], T]], repeats: int, warmup: int = 1) -> dict[str, list[T]]:
    """Run the arms in turn, A B C A B C ..., so that what else the machine does falls on all of them alike.

    Returns:
        What each arm returned, in order; the first ``warmup`` rounds are left out.
    """
    found: dict[str, list[T]] = {name: [] for name in arms}
    with progress(label, (warmup + repeats) * len(arms)) as advance:
        for turn in range(warmup + repeats):
            for name, run in arms.items():
                result = run()
                if turn >= warmup:
                    found[name].append(result)
                advance()
    return found


def percentile(values: Iterable[float], q: float) -> float:
    """The ``q``-th percentile (0 to 100), interpolated between neighbours."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no values")
    place = (len(ordered) - 1) * q / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def spread(values: Sequence[float], name: str = "value") -> Row:
    """Median under ``name``, 10th and 90th percentile, and of how many values."""
    return {
        name: percentile(values, 50),
        "p10": percentile(values, 10),
        "p90": percentile(values, 90),
        "n": len(values),
    }


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Ratio of every pair of neighbours in an interleaved run."""
    return [a / b for a, b in zip(ours, theirs, strict=True)]


def machine() -> Row:
    """The machine and how much of it torch uses."""
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    found = {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "platform": platform.platform(),
        "load_average": os.getloadavg()[0],
    }
    return found | ({"gpus": gpus} if gpus else {})


def versions(*packages: str) -> Row:
    """Versions of Python, of what every benchmark runs on, and of further ``packages``."""
    found: Row = {"python": platform.python_version(), "holdover": holdover.__version__}
    for package in ("torch", "transformers", *packages):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found


def commit() -> str | None:
    """Hash of the checkout, ``-dirty`` if anything but results differs from it; None outside a checkout."""
    try:
        head = _git("rev-parse", "HEAD")
        # a run writes its result into the tree: that alone is no other code
        changes = _git("status", "--porcelain", "--", ".", ":(exclude)benchmarks/results")
    except (OSError, subprocess.CalledProcessError):
        return None
    return f"{head}-dirty" if changes else head


def write_results(path: Path, rows: Sequence[Row], *packages: str, **extra: Any) -> None:
    """Write rows with the machine, the versions, the commit and the date; ``extra`` fields go beside them."""
    document = {
        "machine": machine(),
        "versions": versions(*packages),
        "commit": commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        **extra,
        "rows": list(rows),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    console.print(f"wrote {path}")


def print_table(title: str, columns: Sequence[str], lines: Iterable[Sequence[str]]) -> None:
    """Print a table: the first column is text, the others are numbers."""
    table = Table(title=title, title_justify="left")
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i == 0 else "right")
    for line in lines:
        table.add_row(*line)
    console.print(table)


def number(value: float) -> str:
    """A measured number with the digits that a reader can use."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def shown(value: str | float | None) -> str:
    """A value of a row for a table: nothing where there is none."""
    return "" if value is None else value if isinstance(value, str) else number(value)


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def _git(*command: str) -> str:
    done = subprocess.run(["git", "-C", str(ROOT), *command], capture_output=True, text=True, check=True)
    return done.stdout.strip()
