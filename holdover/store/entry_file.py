"""The file of one spilled entry: what its bytes are, and how damage is told.

```
magic, version, length of the header, bytes of state, bytes of rows           32 bytes, little-endian
header: JSON, UTF-8
state
rows
SHA-256 of the state, of the rows, and of all the rest, these two included    96 bytes
```

The lengths stand before what they measure, so that a file of the wrong size is refused before anything is allocated
for it. Rows can be read and verified without the state. The last checksum ties the parts to one another.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import struct
import sys
from collections.abc import Iterator
from dataclasses import asdict
from functools import lru_cache
from typing import Any

import torch

from holdover.errors import SpillError
from holdover.state import CheckpointHeader, Lineage
from holdover.store.entry_check import refuse_contradiction
from holdover.store.spill import Entry, EntryName

_MAGIC = b"HOLDOVER"
_VERSION = 1
_PREFIX = struct.Struct("<8sIIQQ")
_DIGEST = hashlib.sha256().digest_size
_TRAILER_BYTES = 3 * _DIGEST
# what was read is hashed while it is in the processor's cache, and the kernel reads ahead meanwhile
_PIECE = 1 << 20
_FILE_NAME = re.compile(r"(\d+)-([0-9a-f]+)-(\d+)-([0-9a-f]+)-(\d+)\.entry", re.ASCII)


def file_name(name: EntryName) -> str:
    """Name of an entry's file; it carries everything that an index needs."""
    return f"{name.depth}-{name.key.hex()}-{name.parent_depth}-{name.parent_key.hex()}-{name.losses}.entry"


# a folder is listed again and again, and most of its names stay
@lru_cache(1 << 14)
def name_of(file: str) -> EntryName | None:
    """The entry that a file's name stands for, or None if it is no entry's."""
    found = _FILE_NAME.fullmatch(file)
    if found is None:
        return None
    depth, key, parent_depth, parent_key, losses = found.groups()
    if len(key) % 2 or len(parent_key) % 2:
        return None
    name = EntryName(int(depth), bytes.fromhex(key), int(parent_depth), bytes.fromhex(parent_key), int(losses))
    # a chain of parents must end, and one entry has one file
    return name if name.parent_depth < name.depth and file_name(name) == file else None


def file_bytes(entry: Entry) -> int:
    """Exact size of an entry's file."""
    return _PREFIX.size + len(_describe(entry)) + entry.nbytes + _TRAILER_BYTES


def write_entry(fd: int, entry: Entry) -> None:
    """Write an entry to an open, empty file. Nothing is durable until the caller syncs it.

    Raises:
        SpillError: the entry's parts contradict each other; nothing was written.
        OSError: the file could not be written.
    """
    refuse_contradiction(entry)
    header = _describe(entry)
    head = _PREFIX.pack(_MAGIC, _VERSION, len(header), entry.state.numel(), entry.kv.numel()) + header
    sections = [_bytes_of(entry.state), _bytes_of(entry.kv)]
    for part in (memoryview(head), *sections):
        _write_all(fd, part)
    _start_writeback(fd)
    digests = b"".join(hashlib.sha256(section).digest() for section in sections)
    _write_all(fd, memoryview(digests + hashlib.sha256(head + digests).digest()))


def read_entry(fd: int, name: EntryName, *, with_state: bool = True) -> Entry:
    """Read an entry from an open file and verify that it is whole and the one wanted.

    Args:
        fd: the file.
        name: the entry wanted.
        with_state: False to read and verify the rows only; ``state`` is then empty.

    Raises:
        SpillError: it is truncated, damaged, of another version, or another's.
        OSError: the file could not be read.
    """
    head, state_bytes, kv_bytes = _read_head(fd)
    state_place = len(head)
    kv_place = state_place + state_bytes
    trailer = _read(fd, _TRAILER_BYTES, kv_place + kv_bytes)
    sections, rest = trailer[: 2 * _DIGEST], trailer[2 * _DIGEST :]
    if hashlib.sha256(head + sections).digest() != rest:
        raise _damaged("header")
    header, kv_lineage = _parse(head[_PREFIX.size :], name)
    kv = _read_section(fd, kv_bytes, kv_place, sections[_DIGEST:], "rows")
    state = torch.empty(0, dtype=torch.uint8)
    if with_state:
        state = _read_section(fd, state_bytes, state_place, sections[:_DIGEST], "state")
    rows = name.depth - name.parent_depth
    return Entry(name, header, kv_lineage, state, kv.view(rows, kv_bytes // rows))


def _read_head(fd: int) -> tuple[bytes, int, int]:
    """Prefix and header, and the sizes of state and rows, which together fit the file."""
    size = os.fstat(fd).st_size
    if size < _PREFIX.size:
        raise SpillError(f"the file is truncated: it has {size} bytes")
    prefix = _read(fd, _PREFIX.size, 0)
    magic, version, header_bytes, state_bytes, kv_bytes = _PREFIX.unpack(prefix)
    if magic != _MAGIC:
        raise SpillError("the file is no entry: its first bytes are wrong")
    if version != _VERSION:
        raise SpillError(f"the file has format version {version}; this Holdover reads {_VERSION}")
    wanted = _PREFIX.size + header_bytes + state_bytes + kv_bytes + _TRAILER_BYTES
    if size != wanted:
        raise SpillError(f"the file is truncated or damaged: it has {size} bytes instead of {wanted}")
    return prefix + _read(fd, header_bytes, _PREFIX.size), state_bytes, kv_bytes


def _read_section(fd: int, count: int, place: int, checksum: bytes, part: str) -> torch.Tensor:
    section = torch.empty(count, dtype=torch.uint8)
    digest = hashlib.sha256()
    for piece in _pieces(_bytes_of(section)):
        _read_into(fd, piece, place)
        digest.update(piece)
        place += len(piece)
    if digest.digest() != checksum:
        raise _damaged(part)
    return section


def _describe(entry: Entry) -> bytes:
    name, header = asdict(entry.name), asdict(entry.header)
    # the name has them
    del header["depth"], header["key"]
    name |= {"key": entry.name.key.hex(), "parent_key": entry.name.parent_key.hex()}
    fields = {"name": name, "header": header, "kv_lineage": asdict(entry.kv_lineage)}
    return json.dumps(fields, separators=(",", ":")).encode()


def _parse(described: bytes, name: EntryName) -> tuple[CheckpointHeader, Lineage]:
    """The checkpoint's header and the rows' lineage."""
    try:
        fields = json.loads(described)
        found = _name_from(fields["name"])
        lineage = Lineage(**fields["header"].pop("lineage"))
        header = CheckpointHeader(depth=found.depth, key=found.key, lineage=lineage, **fields["header"])
        kv_lineage = Lineage(**fields["kv_lineage"])
    except (KeyError, TypeError, ValueError) as error:
        raise SpillError(f"the file's header cannot be read: {error}") from error
    if found != name:
        raise SpillError(f"the file holds another entry: {file_name(found)}")
    return header, kv_lineage


def _name_from(fields: dict[str, Any]) -> EntryName:
    keys = {key: bytes.fromhex(fields[key]) for key in ("key", "parent_key")}
    return EntryName(**(fields | keys))


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    """A tensor's bytes, in order; the tensor's own memory if it is contiguous."""
    return tensor.contiguous().view(-1).numpy().data


def _pieces(view: memoryview) -> Iterator[memoryview]:
    return (view[start : start + _PIECE] for start in range(0, len(view), _PIECE))


def _write_all(fd: int, view: memoryview) -> None:
    while view:
        view = view[os.write(fd, view) :]


def _start_writeback(fd: int) -> None:
    """Let the disk work on what was written while it is hashed; the sync that follows has less to wait for."""
    # Linux takes this advice by writing dirty pages back, without waiting for them
    if sys.platform == "linux":
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


def _read(fd: int, count: int, place: int) -> bytes:
    data = bytearray(count)
    _read_into(fd, memoryview(data), place)
    return bytes(data)


def _read_into(fd: int, view: memoryview, place: int) -> None:
    while view:
        count = os.preadv(fd, [view], place)
        if not count:
            raise SpillError("the file was truncated while it was read")
        view, place = view[count:], place + count


def _damaged(part: str) -> SpillError:
    return SpillError(f"the file is damaged: the checksum of its {part} disagrees")
