"""Entries on disk: private, whole at every instant, found again, bounded, and shared between servers."""

from __future__ import annotations

import errno
import fcntl
import multiprocessing
import os
import random
import shutil
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from holdover.errors import ConfigError, SpillError
from holdover.store.directory import Directory
from holdover.store.entry_file import file_bytes, file_name
from holdover.store.spill import Entry, EntryName
from tests.store.entries import assert_same, chain, entry_of, make_entry, make_name, write_chain

ROOMY = 1 << 30
# a server that imports once and forks each child from there
SPAWN = multiprocessing.get_context("forkserver")
SPAWN.set_forkserver_preload(["tests.store.entries"])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "spill"


def open_directory(root: Path, budget: int = ROOMY, identity: str = "model") -> Directory:
    return Directory(root, budget=budget, identity=identity)


def path_of(root: Path, name: EntryName, identity: str = "model") -> Path:
    return root / identity / file_name(name)


def entries_in(root: Path) -> set[str]:
    return {path.name for path in root.glob("*/*.entry")}


def bytes_in(root: Path) -> int:
    return sum(path.stat().st_size for path in root.glob("*/*.entry"))


def temporaries(root: Path) -> list[Path]:
    return list(root.glob("*/*.tmp"))


# opening


def test_everything_is_private(root: Path) -> None:
    directory = open_directory(root)
    directory.put(make_entry(2))
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in [root, *root.rglob("*")]}
    assert len(modes) == 4
    assert all(mode == (0o700 if path.is_dir() else 0o600) for path, mode in modes.items())


def test_missing_parents_are_made(tmp_path: Path) -> None:
    assert open_directory(tmp_path / "a" / "b").put(make_entry(2))


def test_empty_root_that_others_may_enter_is_tightened(root: Path) -> None:
    root.mkdir(mode=0o755)
    open_directory(root)
    assert stat.S_IMODE(root.stat().st_mode) == 0o700


def test_root_in_use_that_others_may_enter_is_refused(root: Path) -> None:
    open_directory(root)
    for mode in (0o701, 0o750, 0o777):
        root.chmod(mode)
        with pytest.raises(ConfigError, match="chmod 700"):
            open_directory(root)
        assert stat.S_IMODE(root.stat().st_mode) == mode


@pytest.mark.parametrize("place", ["spill", "spill/below", "spill/far/below"])
def test_file_in_the_way(root: Path, place: str) -> None:
    root.write_text("mine")
    with pytest.raises(ConfigError, match="is a file, not a directory"):
        open_directory(root.parent / place)
    assert root.read_text() == "mine"


def test_root_of_another_user(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root.mkdir(mode=0o700)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(ConfigError, match="another user"):
        open_directory(root)


def test_root_without_write_permission(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root.mkdir(mode=0o700)
    # whoever runs the tests may write everywhere
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(ConfigError, match="not writable"):
        open_directory(root)


def test_root_that_cannot_be_locked(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", refuse(errno.ENOLCK))
    with pytest.raises(ConfigError, match="name another directory"):
        open_directory(root)


@pytest.mark.parametrize("identity", ["", ".", "..", "a/b", ".hidden", "a\n", "x" * 129, "lock"])
def test_identities_that_name_no_folder(root: Path, identity: str) -> None:
    with pytest.raises(ConfigError):
        open_directory(root, identity=identity)


# keeping and finding


def test_restart_finds_everything(root: Path) -> None:
    before, entries = open_directory(root), chain(10)
    for entry in entries:
        assert before.put(entry)
    after = open_directory(root)
    assert set(after.depths()) == {entry.name.depth for entry in entries}
    for entry in entries:
        assert after.find(entry.name.depth, entry.name.key) == entry.name
        assert_same(after.get(entry.name), entry)
        assert_same(after.get(entry.name, with_state=False), entry, with_state=False)


def test_nothing_is_found_where_nothing_is(root: Path) -> None:
    directory = open_directory(root)
    assert not directory.depths()
    assert directory.find(2, make_name(2).key) is None
    with pytest.raises(SpillError, match="gone"):
        directory.get(make_name(2))


def test_identities_do_not_see_each_other(root: Path) -> None:
    one, two = (open_directory(root, identity=identity) for identity in ("one", "two"))
    one.put(make_entry(2))
    assert two.find(2, make_name(2).key) is None
    with pytest.raises(SpillError, match="gone"):
        two.get(make_name(2))


def test_fewer_losses_replace(root: Path) -> None:
    directory = open_directory(root)
    for losses, kept in ((2, 2), (3, 2), (1, 1), (1, 1), (0, 0), (2, 0)):
        assert directory.put(make_entry(2, losses=losses))
        assert entries_in(root) == {file_name(make_name(2, losses=kept))}
        assert directory.find(2, make_name(2).key) == make_name(2, losses=kept)


def test_equal_entry_is_not_written_again(root: Path) -> None:
    directory = open_directory(root)
    directory.put(make_entry(2))
    before = path_of(root, make_name(2)).stat()
    assert directory.put(make_entry(2))
    after = path_of(root, make_name(2)).stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


@pytest.mark.parametrize("place", [0, 9, 12, 40, 300, -97, -65, -33, -1])
def test_damaged_entry_is_removed(root: Path, place: int) -> None:
    directory, entry = open_directory(root), make_entry(2)
    directory.put(entry)
    path = path_of(root, entry.name)
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)
    with pytest.raises(SpillError, match=path.name):
        directory.get(entry.name)
    assert not entries_in(root)
    assert directory.find(2, entry.name.key) is None
    assert directory.put(entry)
    assert_same(directory.get(entry.name), entry)


@pytest.mark.parametrize("keep", [0, 1, 31, 200, -1])
def test_truncated_entry_is_removed(root: Path, keep: int) -> None:
    directory, entry = open_directory(root), make_entry(2)
    directory.put(entry)
    path = path_of(root, entry.name)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(SpillError, match="truncated"):
        directory.get(entry.name)
    assert not entries_in(root)


def test_file_under_anothers_name_is_removed(root: Path) -> None:
    directory = open_directory(root)
    directory.put(make_entry(2))
    path_of(root, make_name(2)).rename(path_of(root, make_name(2, text="b")))
    with pytest.raises(SpillError, match="another entry"):
        directory.get(make_name(2, text="b"))
    assert not entries_in(root)


def test_unreadable_entry_is_removed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = open_directory(root)
    directory.put(make_entry(2))
    with monkeypatch.context() as patched:
        patched.setattr(os, "preadv", refuse(errno.EIO))
        with pytest.raises(SpillError, match="Input/output"):
            directory.get(make_name(2))
    assert not entries_in(root)


def test_entry_that_may_not_be_opened_stays(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = open_directory(root)
    directory.put(make_entry(2))
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", refuse(errno.EMFILE))
        with pytest.raises(SpillError, match="Too many open files"):
            directory.get(make_name(2))
    assert_same(directory.get(make_name(2)), make_entry(2))


def test_foreign_files_are_left_alone(root: Path) -> None:
    directory = open_directory(root, budget=file_bytes(make_entry(2)))
    (root / "notes.txt").write_text("mine")
    (root / "model" / "notes.txt").write_text("mine")
    assert directory.put(make_entry(2))
    assert directory.put(make_entry(2, text="b"))
    open_directory(root, budget=0)
    assert sorted(path.name for path in root.rglob("*.*")) == ["notes.txt", "notes.txt"]


# order of eviction


def test_leaves_go_first_and_reading_refreshes_the_chain(root: Path) -> None:
    a, b = chain(2, text="a"), chain(2, text="b")
    directory = open_directory(root, budget=sum(map(file_bytes, a + b)))
    for entry in a + b:
        directory.put(entry)
    directory.get(a[1].name)
    expected = [b[1], b[0], a[1], a[0]]
    for text, gone in zip("cdef", range(1, 5), strict=True):
        assert directory.put(make_entry(2, text=text))
        assert not {file_name(entry.name) for entry in expected[:gone]} & entries_in(root)
        assert {file_name(entry.name) for entry in expected[gone:]} <= entries_in(root)


def test_reading_a_turn_is_a_use_of_what_it_continues(root: Path) -> None:
    a, b = chain(2), make_entry(2, text="b")
    directory = open_directory(root, budget=sum(map(file_bytes, a)))
    directory.put(a[0])
    directory.put(b)
    path_of(root, b.name).rename(root / "aside")
    directory.put(a[1])
    directory.get(a[1].name)
    path_of(root, a[1].name).unlink()
    (root / "aside").rename(path_of(root, b.name))
    directory.put(make_entry(2, text="c"))
    assert entries_in(root) == {file_name(a[0].name), file_name(make_name(2, text="c"))}


def test_order_survives_a_restart(root: Path) -> None:
    entries = [make_entry(2, text=text) for text in "abc"]
    directory = open_directory(root, budget=sum(map(file_bytes, entries)))
    for entry in entries:
        directory.put(entry)
    directory.get(entries[0].name)
    after = open_directory(root, budget=sum(map(file_bytes, entries)))
    after.put(make_entry(2, text="d"))
    assert entries_in(root) == {file_name(make_name(2, text=text)) for text in "acd"}


def test_chain_is_never_cut_for_its_own_next_turn(root: Path) -> None:
    entries = chain(3)
    directory = open_directory(root, budget=sum(map(file_bytes, entries[:2])))
    assert [directory.put(entry) for entry in entries] == [True, True, False]
    assert entries_in(root) == {file_name(entry.name) for entry in entries[:2]}


def test_entry_over_the_budget_is_refused(root: Path) -> None:
    small, large = make_entry(2), make_entry(60)
    directory = open_directory(root, budget=file_bytes(large) - 1)
    assert directory.put(small)
    assert not directory.put(large)
    assert entries_in(root) == {file_name(small.name)}


def test_broken_chains_go_first_and_block_nothing(root: Path) -> None:
    old, entries = make_entry(2, text="old"), chain(3)
    directory = open_directory(root, budget=sum(map(file_bytes, [old, *entries])))
    for entry in [old, *entries]:
        directory.put(entry)
    path_of(root, entries[0].name).unlink()
    # room for the first, at the cost of what its absence broke, though that was used last
    assert directory.put(make_entry(2, text="b"))
    assert directory.put(make_entry(2, text="c"))
    assert entries_in(root) & {file_name(entry.name) for entry in [old, *entries]} == {
        file_name(old.name),
        file_name(entries[2].name),
    }
    # another way to the same tokens, though it lost more
    whole = make_entry(6, losses=1)
    assert directory.put(whole)
    assert directory.find(6, whole.name.key) == whole.name


def test_missing_turn_mends_its_chain(root: Path) -> None:
    entries = chain(3)
    directory = open_directory(root, budget=sum(map(file_bytes, entries)))
    for entry in entries:
        directory.put(entry)
    path_of(root, entries[1].name).unlink()
    assert directory.put(entries[1])
    assert entries_in(root) == {file_name(entry.name) for entry in entries}
    assert directory.put(make_entry(2, text="b"))
    assert entries_in(root) == {file_name(name) for name in (*(e.name for e in entries[:2]), make_name(2, text="b"))}


def test_budget_counts_all_identities(root: Path) -> None:
    budget = 3 * file_bytes(make_entry(2))
    one, two = (open_directory(root, budget, identity) for identity in ("one", "two"))
    for text in "abc":
        one.put(make_entry(2, text=text))
    assert two.put(make_entry(2, text="d"))
    assert {path.parent.name + path.name for path in root.glob("*/*.entry")} == {
        *("one" + file_name(make_name(2, text=text)) for text in "bc"),
        "two" + file_name(make_name(2, text="d")),
    }


def test_smaller_budget_is_met_on_opening(root: Path) -> None:
    entries = chain(4)
    directory = open_directory(root)
    for entry in entries:
        directory.put(entry)
    open_directory(root, budget=sum(map(file_bytes, entries[:2])))
    assert entries_in(root) == {file_name(entry.name) for entry in entries[:2]}


# failures


def refuse(code: int) -> Callable[..., int]:
    def fail(*args: object, **kwargs: object) -> int:
        raise OSError(code, os.strerror(code))

    return fail


@contextmanager
def failing(monkeypatch: pytest.MonkeyPatch, function: str, code: int, after: int) -> Iterator[None]:
    """Let the ``after + 1``-th call of one of os's functions fail, and each after that."""
    really, calls = getattr(os, function), 0

    def call(*args: object, **kwargs: object) -> object:
        nonlocal calls
        calls += 1
        return really(*args, **kwargs) if calls <= after else refuse(code)()

    with monkeypatch.context() as patched:
        patched.setattr(os, function, call)
        yield


@pytest.mark.parametrize(
    ("function", "code", "after"),
    [
        ("write", errno.ENOSPC, 0),
        ("write", errno.ENOSPC, 2),
        ("write", errno.EDQUOT, 3),
        ("fsync", errno.EIO, 0),
        # the folder's, after the file was renamed
        ("fsync", errno.EIO, 1),
        ("rename", errno.EACCES, 0),
        ("utime", errno.EPERM, 0),
        ("open", errno.EROFS, 0),
        ("open", errno.EACCES, 1),
        ("scandir", errno.EACCES, 0),
    ],
)
@pytest.mark.parametrize("worse", [False, True])
def test_failed_write_changes_nothing(
    root: Path, monkeypatch: pytest.MonkeyPatch, function: str, code: int, after: int, worse: bool
) -> None:
    old = [make_entry(4, losses=1), make_entry(2, text="b")] if worse else chain(2, text="b")
    # room for the newcomer has to be made
    directory = open_directory(root, budget=sum(map(file_bytes, old)))
    for entry in old:
        directory.put(entry)
    before = {path: path.read_bytes() for path in root.glob("*/*")}
    with failing(monkeypatch, function, code, after), pytest.raises(SpillError, match=os.strerror(code)):
        directory.put(make_entry(4))
    assert {path: path.read_bytes() for path in root.glob("*/*")} == before
    assert directory.find(4, make_name(4).key) == (make_name(4, losses=1) if worse else None)
    assert directory.put(make_entry(4))
    assert_same(directory.get(make_name(4)), make_entry(4))


@pytest.mark.parametrize("everything", [False, True])
def test_vanished_folder_is_made_again_by_the_next_write(root: Path, everything: bool) -> None:
    directory = open_directory(root)
    directory.put(make_entry(2))
    shutil.rmtree(root if everything else root / "model")
    assert not directory.depths()
    assert directory.put(make_entry(2))
    assert set(directory.depths()) == {2}
    assert stat.S_IMODE((root / "model").stat().st_mode) == 0o700


# several servers


def test_servers_see_each_others_changes(root: Path) -> None:
    budget = 2 * file_bytes(make_entry(2))
    one, two = open_directory(root, budget), open_directory(root, budget)
    for text in "abcdefgh":
        assert two.find(2, make_name(2, text=text).key) is None
        one.put(make_entry(2, text=text))
        assert two.find(2, make_name(2, text=text).key) == make_name(2, text=text)
        assert_same(two.get(make_name(2, text=text)), make_entry(2, text=text))
    assert one.find(2, make_name(2, text="f").key) is None
    two.put(make_entry(2, text="x"))
    assert one.find(2, make_name(2, text="g").key) is None


def test_change_within_one_tick_of_the_clock_is_seen(root: Path) -> None:
    one, two = open_directory(root), open_directory(root)
    tick = time.time_ns() + 10**10
    for text in "abc":
        one.put(make_entry(2, text=text))
        os.utime(root / "model", ns=(tick, tick))
        assert two.find(2, make_name(2, text=text).key) == make_name(2, text=text)


def test_reader_finishes_what_another_server_evicts(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry, other = make_entry(2), make_entry(2, text="b")
    one, two = (open_directory(root, file_bytes(entry)) for _ in range(2))
    one.put(entry)
    really = os.preadv

    def evict_first(fd: int, views: list[memoryview], place: int) -> int:
        monkeypatch.setattr(os, "preadv", really)
        two.put(other)
        return really(fd, views, place)

    monkeypatch.setattr(os, "preadv", evict_first)
    assert_same(one.get(entry.name), entry)
    assert entries_in(root) == {file_name(other.name)}


def test_writer_that_is_overtaken_yields(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = open_directory(root), open_directory(root)
    really = os.fsync

    def overtake(fd: int) -> None:
        monkeypatch.setattr(os, "fsync", really)
        two.put(make_entry(2))
        really(fd)

    monkeypatch.setattr(os, "fsync", overtake)
    assert one.put(make_entry(2, losses=1))
    assert entries_in(root) == {file_name(make_name(2))}
    assert not temporaries(root)


def test_abandoned_file_is_removed_and_one_in_use_is_not(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = open_directory(root)
    abandoned = root / "model" / "dead.tmp"
    seen: list[list[Path]] = []
    really = os.fsync

    def look(fd: int) -> None:
        monkeypatch.setattr(os, "fsync", really)
        abandoned.write_bytes(b"half")
        assert len(temporaries(root)) == 2
        open_directory(root)
        seen.append(temporaries(root))
        really(fd)

    monkeypatch.setattr(os, "fsync", look)
    one.put(make_entry(2))
    assert len(seen[0]) == 1
    assert abandoned not in seen[0]
    assert_same(one.get(make_name(2)), make_entry(2))


def test_crash_between_new_and_old_is_tidied(root: Path) -> None:
    directory = open_directory(root)
    directory.put(make_entry(4, losses=1))
    held = path_of(root, make_name(4, losses=1)).read_bytes()
    directory.put(make_entry(4))
    path_of(root, make_name(4, losses=1)).write_bytes(held)
    assert directory.find(4, make_name(4).key) == make_name(4)
    open_directory(root)
    assert entries_in(root) == {file_name(make_name(4))}


def test_threads_share_one_directory(root: Path) -> None:
    entries = {text: chain(8, text=text) for text in "abc"}
    budget = sum(map(file_bytes, entries["a"])) * 2
    directory = open_directory(root, budget)
    failures: list[BaseException] = []

    def work(text: str) -> None:
        try:
            for entry in entries[text]:
                directory.put(entry)
                name = directory.find(entry.name.depth, entry.name.key)
                if name is not None:
                    assert_same(directory.get(name), entry)
        except SpillError as error:
            if "gone" not in str(error):
                failures.append(error)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(text,)) for text in entries]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert 0 < bytes_in(root) <= budget
    assert not temporaries(root)


def start(root: Path, budget: int, text: str, count: int) -> tuple[multiprocessing.process.BaseProcess, Connection]:
    ours, theirs = SPAWN.Pipe(duplex=False)
    child = SPAWN.Process(target=write_chain, args=(root, budget, text, count, theirs), daemon=True)
    child.start()
    theirs.close()
    return child, ours


def received(connection: Connection, at_most: int) -> int:
    """The last number that the child told, after ``at_most`` of them or its end."""
    last = -1
    try:
        for _ in range(at_most):
            last = connection.recv()
    except EOFError:
        pass
    return last


def test_two_processes_keep_one_budget(root: Path) -> None:
    turns = chain(20)
    budget = sum(map(file_bytes, turns[:12]))
    open_directory(root, budget)
    children = [start(root, budget, text, len(turns)) for text in "ab"]
    peak = 0
    while any(child.is_alive() for child, _ in children):
        # a file that gets its name leaves its victims for an instant
        peak = max(peak, listed_bytes(root))
        time.sleep(0.002)
    for child, connection in children:
        assert received(connection, len(turns)) == len(turns) - 1
        child.join()
        assert child.exitcode == 0
    assert 0 < peak <= budget + 2 * max(map(file_bytes, turns))
    assert 0 < bytes_in(root) <= budget
    directory = open_directory(root, budget)
    for text in "ab":
        for entry in chain(len(turns), text=text):
            if directory.find(entry.name.depth, entry.name.key):
                assert_same(directory.get(entry.name), entry)


def listed_bytes(root: Path) -> int:
    total = 0
    for path in root.glob("*/*.entry"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue
    return total


@pytest.mark.parametrize("seed", range(8))
def test_killed_writer_loses_at_most_the_newest(root: Path, seed: int) -> None:
    entries: list[Entry] = chain(50)
    chance = random.Random(seed)
    child, connection = start(root, ROOMY, "a", len(entries))
    last = received(connection, chance.randint(1, len(entries)))
    time.sleep(chance.random() * 0.01)
    child.kill()
    child.join()
    # what it told before it died
    last = max(last, received(connection, len(entries)))
    directory = open_directory(root)
    assert not temporaries(root)
    kept = [entry for entry in entries if directory.find(entry.name.depth, entry.name.key)]
    assert kept == entries[: len(kept)]
    assert len(kept) >= last
    for entry in kept:
        assert_same(directory.get(entry.name), entry)
    assert entries_in(root) == {file_name(entry_of(entry.name).name) for entry in kept}
