"""Compare writing entries to a directory with a plain durable write of the same bytes, in one run, interleaved.

    python benchmarks/spill.py [--quick] [--root DIR]

Either way a call returns once the bytes are on the disk. Files are removed between the calls, so that both write to
the same free space.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks import common
from benchmarks.common import Aim, Row
from holdover.errors import HoldoverError
from holdover.state import EXACT, CheckpointHeader, KeyChain
from holdover.store.directory import Directory
from holdover.store.entry_file import file_bytes, write_entry
from holdover.store.spill import Entry, EntryName

MIB = 1 << 20
SIZES = (4 * MIB, 16 * MIB, 64 * MIB)
AIM = Aim(0.7, at_least=True)
NAMESPACE = b"benchmark"
TOKENS = 1024


def main() -> int:
    parser = common.arguments("spill", __doc__)
    parser.add_argument("--root", type=Path, help="directory of the disk to measure (default: the temporary one)")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    try:
        with tempfile.TemporaryDirectory(dir=options.root) as folder:
            rows = run(Path(folder), repeats=5 if options.quick else 30)
    except HoldoverError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    show(rows)
    common.write_results(options.out, rows, quick=options.quick)
    return 0


def run(folder: Path, repeats: int) -> list[Row]:
    return [measure(folder, size, repeats) for size in SIZES]


def measure(folder: Path, size: int, repeats: int) -> Row:
    """One cell: megabytes a second of both arms, and their ratio."""
    entry = entry_of(size)
    arms = {"directory": put(folder / "directory", entry), "plain": plain(folder, entry)}
    seconds = common.interleaved(f"{size // MIB} MiB", arms, repeats)
    speeds = {name: [file_bytes(entry) / taken / 1e6 for taken in found] for name, found in seconds.items()}
    ratio = common.spread(common.ratios(speeds["directory"], speeds["plain"]), "ratio")
    return {
        "bytes": size,
        "mbps": common.percentile(speeds["directory"], 50),
        "fsync_mbps": common.percentile(speeds["plain"], 50),
        **ratio,
        "aim": str(AIM),
        "met": AIM.met(ratio["ratio"]),
    }


def entry_of(size: int) -> Entry:
    """An entry of ``size`` random bytes, half of them state."""
    chain = KeyChain(NAMESPACE)
    parent = chain.key()
    chain.extend(range(TOKENS))
    source = torch.Generator().manual_seed(size)
    data = torch.randint(0, 256, (2, size // 2), dtype=torch.uint8, generator=source)
    name = EntryName(chain.depth, chain.key(), 0, parent)
    return Entry(name, CheckpointHeader(name.depth, name.key, "layout"), EXACT, data[0], data[1].view(TOKENS, -1))


def put(root: Path, entry: Entry) -> Callable[[], float]:
    directory = Directory(root, budget=1 << 40, identity="benchmark")

    def timed() -> float:
        start = time.perf_counter()
        assert directory.put(entry)
        taken = time.perf_counter() - start
        for file in root.glob("benchmark/*.entry"):
            file.unlink()
        return taken

    return timed


def plain(folder: Path, entry: Entry) -> Callable[[], float]:
    path = folder / "plain"
    with path.open("w+b") as file:
        write_entry(file.fileno(), entry)
        data = memoryview(os.pread(file.fileno(), file_bytes(entry), 0))
    path.unlink()

    def timed() -> float:
        start = time.perf_counter()
        with path.open("wb", buffering=0) as file:
            left = data
            while left:
                left = left[file.write(left) :]
            os.fsync(file.fileno())
        taken = time.perf_counter() - start
        path.unlink()
        return taken

    return timed


def show(rows: list[Row]) -> None:
    lines = [
        (
            f"{row['bytes'] // MIB} MiB",
            common.number(row["mbps"]),
            common.number(row["fsync_mbps"]),
            f"{row['ratio']:.2f} ({row['p10']:.2f} to {row['p90']:.2f})",
            f"{row['aim']} {'met' if row['met'] else 'missed'}",
        )
        for row in rows
    ]
    common.print_table("Entries written to a directory", ("entry", "MB/s", "write + fsync", "ratio", "aim"), lines)


if __name__ == "__main__":
    sys.exit(main())
