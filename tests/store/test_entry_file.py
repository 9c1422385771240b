"""The file of an entry: what was written comes back, and nothing else is taken for it."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from holdover.errors import SpillError
from holdover.store.entry_file import file_bytes, file_name, name_of, read_entry, write_entry
from holdover.store.spill import Entry, EntryName
from tests.store.entries import assert_same, entry_of, make_entry, make_name

NAME = make_name(7, 3, losses=2)
ENTRY = entry_of(NAME)
KEYS = st.binary(min_size=1, max_size=32)


def write(path: Path, entry: Entry) -> bytes:
    with path.open("wb") as file:
        write_entry(file.fileno(), entry)
    return path.read_bytes()


def read(path: Path, name: EntryName, *, with_state: bool = True) -> Entry:
    with path.open("rb") as file:
        return read_entry(file.fileno(), name, with_state=with_state)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "entry"


@pytest.mark.parametrize("with_state", [True, False])
@pytest.mark.parametrize(
    ("state_bytes", "row_bytes"), [(60, 5), (0, 5), (60, 0), (0, 0), (1, 1), ((1 << 20) + 1, 1 << 18)]
)
def test_round_trip(path: Path, state_bytes: int, row_bytes: int, with_state: bool) -> None:
    entry = entry_of(NAME, state_bytes, row_bytes)
    assert len(write(path, entry)) == file_bytes(entry)
    assert_same(read(path, NAME, with_state=with_state), entry, with_state=with_state)


def test_strided_tensors_are_written_in_their_order(path: Path) -> None:
    wide = torch.randint(0, 256, (4, 10), dtype=torch.uint8)
    entry = replace(ENTRY, state=wide[0, ::2], kv=wide[:, ::3])
    write(path, entry)
    assert_same(read(path, NAME), entry)


def test_sections_can_be_viewed_as_wider_numbers(path: Path) -> None:
    write(path, entry_of(NAME, 64, 8))
    found = read(path, NAME)
    found.state.view(torch.float32)
    found.kv.view(torch.float64)


def test_every_flipped_byte_is_noticed(path: Path) -> None:
    whole = write(path, ENTRY)
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x40]) + whole[place + 1 :])
        with pytest.raises(SpillError):
            read(path, NAME)
    path.write_bytes(whole)
    assert_same(read(path, NAME), ENTRY)


def test_damage_is_noticed_in_whatever_is_read(path: Path) -> None:
    whole = write(path, ENTRY)
    kv = bytes(ENTRY.kv.flatten().tolist())
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        state_start = whole.index(bytes(ENTRY.state.tolist()))
        if state_start <= place < whole.index(kv):
            # the state's own checksum is for who reads the state
            assert_same(read(path, NAME, with_state=False), ENTRY, with_state=False)
        else:
            with pytest.raises(SpillError):
                read(path, NAME, with_state=False)


def test_every_truncation_is_noticed(path: Path) -> None:
    whole = write(path, ENTRY)
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(SpillError, match="truncated"):
            read(path, NAME)


def test_appended_bytes_are_noticed(path: Path) -> None:
    path.write_bytes(write(path, ENTRY) + b"\0")
    with pytest.raises(SpillError, match="bytes instead of"):
        read(path, NAME)


def test_rows_of_another_entry_are_noticed(path: Path) -> None:
    other = write(path, make_entry(7, 3, text="b", losses=2))
    whole = write(path, ENTRY)
    rows, digests = ENTRY.kv.numel(), 96
    mixed = whole[: -rows - digests] + other[-rows - digests : -digests] + whole[-digests:]
    # with the checksum of those rows too
    mixed = mixed[:-64] + other[-64:-32] + mixed[-32:]
    path.write_bytes(mixed)
    with pytest.raises(SpillError, match="header"):
        read(path, NAME)


@pytest.mark.parametrize(
    ("data", "message"),
    [(b"", "truncated"), (b"x" * 200, "no entry"), (b"HOLDOVER" + b"\xff" * 300, "version")],
)
def test_what_is_no_entry(path: Path, data: bytes, message: str) -> None:
    path.write_bytes(data)
    with pytest.raises(SpillError, match=message):
        read(path, NAME)


@pytest.mark.parametrize(
    "other", [make_name(8, 4, losses=2), make_name(7, 2, losses=2), make_name(7, 3), make_name(7, 3, "b", losses=2)]
)
def test_another_entry_is_refused(path: Path, other: EntryName) -> None:
    write(path, ENTRY)
    with pytest.raises(SpillError, match="another entry"):
        read(path, other)


@pytest.mark.parametrize(
    "entry",
    [
        replace(ENTRY, name=make_name(8, 4)),
        replace(ENTRY, name=make_name(7, 3, text="b")),
        replace(ENTRY, name=make_name(7, 7)),
        replace(ENTRY, name=make_name(7, 9)),
        replace(ENTRY, kv=ENTRY.kv[1:]),
        replace(ENTRY, state=ENTRY.state.float()),
        replace(ENTRY, kv=ENTRY.kv.to(torch.int8)),
        replace(ENTRY, state=ENTRY.state.to("meta")),
    ],
)
def test_contradictions_are_refused(path: Path, entry: Entry) -> None:
    with pytest.raises(SpillError):
        write(path, entry)
    assert path.stat().st_size == 0


@given(
    depth=st.integers(1, 1 << 40), back=st.integers(1, 1 << 40), keys=st.tuples(KEYS, KEYS), losses=st.integers(0, 99)
)
def test_names_survive(depth: int, back: int, keys: tuple[bytes, bytes], losses: int) -> None:
    name = EntryName(depth, keys[0], max(depth - back, 0), keys[1], losses)
    assert name_of(file_name(name)) == name


@pytest.mark.parametrize(
    "file",
    [
        "lock",
        "",
        "a.tmp",
        "7-ab-3-cd-0.entry.tmp",
        "7-ab-7-cd-0.entry",
        "3-ab-7-cd-0.entry",
        "7-abc-3-cd-0.entry",
        "7-AB-3-cd-0.entry",
        "07-ab-3-cd-0.entry",
        "-7-ab-3-cd-0.entry",
        "7-ab-3-cd-0.entry\n",
        "\u0667-ab-3-cd-0.entry",
    ],
)
def test_other_files_have_no_name(file: str) -> None:
    assert name_of(file) is None


def test_partial_writes_and_reads_are_continued(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    really_write, really_read = os.write, os.preadv
    monkeypatch.setattr(os, "write", lambda fd, data: really_write(fd, data[:7]))
    monkeypatch.setattr(os, "preadv", lambda fd, views, place: really_read(fd, [views[0][:5]], place))
    write(path, ENTRY)
    assert_same(read(path, NAME), ENTRY)
