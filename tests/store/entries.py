"""Spilled entries whose every byte follows from their name, chains of them, and a child process that writes a chain."""

from __future__ import annotations

import hashlib
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from holdover.state import EXACT, CheckpointHeader, Lineage
from holdover.store.directory import Directory
from holdover.store.spill import Entry, EntryName
from holdover.store.writer import SpillWriter

STATE_BYTES, ROW_BYTES = 60, 5


def key(depth: int, text: str = "a") -> bytes:
    return hashlib.blake2b(f"{text} {depth}".encode(), digest_size=16).digest()


def make_name(depth: int, parent: int = 0, text: str = "a", losses: int = 0) -> EntryName:
    return EntryName(depth, key(depth, text), parent, key(parent, text), losses)


def entry_of(name: EntryName, state_bytes: int = STATE_BYTES, row_bytes: int = ROW_BYTES) -> Entry:
    """The one entry of a name, with nothing at its default."""
    rows = name.depth - name.parent_depth
    lineage = Lineage("nr", name.losses) if name.losses else EXACT
    header = CheckpointHeader(name.depth, name.key, "layout", lineage, "ragged", "plan", 1, 2)
    seed = int.from_bytes(hashlib.blake2b(repr(name).encode(), digest_size=4).digest(), "big")
    source = torch.Generator().manual_seed(seed)
    state = torch.randint(0, 256, (state_bytes,), dtype=torch.uint8, generator=source)
    kv = torch.randint(0, 256, (rows, row_bytes), dtype=torch.uint8, generator=source)
    return Entry(name, header, Lineage("wr", name.losses + 1), state, kv)


def make_entry(depth: int, parent: int = 0, text: str = "a", losses: int = 0) -> Entry:
    return entry_of(make_name(depth, parent, text, losses))


def chain(count: int, step: int = 2, text: str = "a") -> list[Entry]:
    """Turns of a conversation, each of which continues the last."""
    return [make_entry(step * (i + 1), step * i, text) for i in range(count)]


def assert_same(found: Entry, wanted: Entry, *, with_state: bool = True) -> None:
    assert (found.name, found.header, found.kv_lineage) == (wanted.name, wanted.header, wanted.kv_lineage)
    assert found.kv.shape == wanted.kv.shape
    assert torch.equal(found.kv, wanted.kv)
    assert torch.equal(found.state, wanted.state if with_state else wanted.state[:0])


def write_chain(root: Path, budget: int, text: str, count: int, submitted: Connection) -> None:
    """Body of a child process: write a chain, and tell each turn's number once its submission has returned."""
    writer = SpillWriter([Directory(root, budget=budget, identity="model")])
    for number, entry in enumerate(chain(count, text=text)):
        writer.submit(entry)
        submitted.send(number)
    writer.close()
    submitted.close()
