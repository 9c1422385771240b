"""The writer's thread: how far behind it may be, and that nothing stops it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from holdover.errors import SpillError
from holdover.store.directory import Directory
from holdover.store.host import HostShelf
from holdover.store.spill import Entry
from holdover.store.writer import SpillCounters, SpillWriter
from tests.store.entries import assert_same, chain, make_entry


class SlowShelf(HostShelf):
    """Keeps an entry only when it is let."""

    def __init__(self) -> None:
        super().__init__(1 << 20)
        self.turns = threading.Semaphore(0)

    def put(self, entry: Entry) -> bool:
        self.turns.acquire()
        return super().put(entry)


class BrokenShelf(HostShelf):
    """Fails at the entries of one depth."""

    def __init__(self, depth: int, error: Exception) -> None:
        super().__init__(1 << 20)
        self.depth, self.error = depth, error

    def put(self, entry: Entry) -> bool:
        if entry.name.depth == self.depth:
            raise self.error
        return super().put(entry)


def test_every_shelf_gets_every_entry(tmp_path: Path) -> None:
    entries = chain(5)
    host, disk = HostShelf(1 << 20), Directory(tmp_path / "spill", budget=1 << 20, identity="model")
    writer = SpillWriter([host, disk])
    for entry in entries:
        writer.submit(entry)
    writer.drain()
    for shelf in (host, disk):
        for entry in entries:
            assert_same(shelf.get(entry.name), entry)
    assert writer.counters == SpillCounters(written=10, bytes=2 * sum(entry.nbytes for entry in entries))
    writer.close()


@pytest.mark.parametrize("lag", [0, 1, 3])
def test_submission_waits_for_all_but_the_newest(lag: int) -> None:
    shelf, entries, returned = SlowShelf(), chain(8), []
    advanced = threading.Semaphore(0)
    writer = SpillWriter([shelf], lag=lag)

    def submit() -> None:
        for entry in entries:
            writer.submit(entry)
            written = [one for one in entries if shelf.find(one.name.depth, one.name.key)]
            returned.append(len(written))
            advanced.release()

    thread = threading.Thread(target=submit)
    thread.start()
    # as many as may be unwritten return without any being written
    for _ in range(lag):
        advanced.acquire()
    assert returned == [0] * lag
    for _ in entries:
        shelf.turns.release()
    thread.join()
    for submitted, written in enumerate(returned, start=1):
        assert written >= submitted - lag
    writer.close()
    assert len(shelf.depths()) == len(entries)


def test_pending_until_written() -> None:
    shelf, entry = SlowShelf(), make_entry(2)
    writer = SpillWriter([shelf])
    assert not writer.is_pending(entry.name)
    writer.submit(entry)
    assert writer.is_pending(entry.name)
    assert shelf.find(2, entry.name.key) is None
    shelf.turns.release()
    writer.drain()
    assert not writer.is_pending(entry.name)
    assert shelf.find(2, entry.name.key) == entry.name
    writer.close()


@pytest.mark.parametrize("error", [SpillError("the disk is full"), RuntimeError("a fault of ours")])
def test_failures_are_counted_and_the_rest_is_written(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    entries, other = chain(4), HostShelf(1 << 20)
    writer = SpillWriter([BrokenShelf(entries[1].name.depth, error), other])
    for entry in entries:
        writer.submit(entry)
    writer.drain()
    assert writer.counters.failed == 1
    assert writer.counters.written == 7
    assert len(other.depths()) == 4
    assert str(error) in caplog.text
    writer.close()


def test_refusals_are_counted() -> None:
    writer = SpillWriter([HostShelf(0)])
    writer.submit(make_entry(2))
    writer.drain()
    assert writer.counters == SpillCounters(refused=1)
    writer.close()


def test_closing_writes_what_is_pending_and_ends_the_thread() -> None:
    shelf, entries = SlowShelf(), chain(3)
    writer = SpillWriter([shelf], lag=3)
    for entry in entries:
        writer.submit(entry)
    for _ in entries:
        shelf.turns.release()
    writer.close()
    assert len(shelf.depths()) == 3
    assert not writer._thread.is_alive()
    writer.close()
    with pytest.raises(SpillError, match="closed"):
        writer.submit(make_entry(2))
