"""A shelf in host memory: what it keeps is its own, and several threads use it at once."""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import replace

import pytest
import torch

from holdover.errors import SpillError
from holdover.store.host import HostShelf
from tests.store.entries import assert_same, chain, entry_of, make_entry, make_name


def test_kept_bytes_are_a_copy() -> None:
    base = torch.zeros(1000, dtype=torch.uint8)
    entry = replace(make_entry(2), state=base[:60])
    shelf = HostShelf(1000)
    assert shelf.put(entry)
    base.fill_(7)
    entry.kv.fill_(7)
    found = shelf.get(entry.name)
    assert not found.state.any()
    assert torch.equal(found.kv, make_entry(2).kv)
    assert found.state.untyped_storage().nbytes() == 60


def test_rows_alone() -> None:
    entry, shelf = make_entry(2), HostShelf(1000)
    shelf.put(entry)
    assert_same(shelf.get(entry.name, with_state=False), entry, with_state=False)
    assert_same(shelf.get(entry.name), entry)


def test_what_is_gone_or_replaced_raises() -> None:
    shelf = HostShelf(1000)
    with pytest.raises(SpillError, match="gone"):
        shelf.get(make_name(2))
    shelf.put(make_entry(2, losses=1))
    shelf.put(make_entry(2))
    with pytest.raises(SpillError, match="gone"):
        shelf.get(make_name(2, losses=1))


def test_contradictory_entry_is_refused() -> None:
    shelf = HostShelf(1000)
    with pytest.raises(SpillError):
        shelf.put(replace(make_entry(2), name=make_name(3, 1)))
    assert not shelf.depths()


@pytest.mark.parametrize("short", [0, 1])
def test_budget_of_exactly_one_entry(short: int) -> None:
    entry = make_entry(2)
    shelf = HostShelf(entry.nbytes - short)
    assert shelf.put(entry) == (not short)
    assert set(shelf.depths()) == (set() if short else {2})


def test_reading_a_turn_is_a_use_of_what_it_continues() -> None:
    first, turn, other = make_entry(2), make_entry(4, 2, losses=1), make_entry(2, text="b")
    # the same tokens as the turn, with all their rows
    better = make_entry(4)
    shelf = HostShelf(first.nbytes + other.nbytes + better.nbytes)
    for entry in (first, other, turn):
        shelf.put(entry)
    shelf.get(turn.name)
    shelf.put(better)
    assert shelf.put(make_entry(2, text="c"))
    assert shelf.find(2, first.name.key) == first.name
    assert shelf.find(2, other.name.key) is None


def test_many_threads() -> None:
    texts = "abcd"
    shelf = HostShelf(sum(entry.nbytes for entry in chain(10)) * 2)
    failures: list[BaseException] = []

    def work(text: str) -> None:
        try:
            for _ in range(20):
                for entry in chain(10, text=text):
                    shelf.put(entry)
                    name = shelf.find(entry.name.depth, entry.name.key)
                    if name is not None:
                        # another thread may have evicted it since
                        with suppress(SpillError):
                            assert_same(shelf.get(name), entry_of(name))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(text,)) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    held = [name for text in texts for e in chain(10, text=text) if (name := shelf.find(e.name.depth, e.name.key))]
    assert 0 < sum(entry_of(name).nbytes for name in held) <= sum(entry.nbytes for entry in chain(10)) * 2
    for name in held:
        assert_same(shelf.get(name), entry_of(name))
