import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdover.store import LRU


class Entry:
    """Equal to every other entry: only identity tells them apart."""

    def __init__(self, name):
        self.name = name

    def __eq__(self, other):
        return True

    __hash__ = None


def of(names):
    order, entries = LRU(), {name: Entry(name) for name in names}
    for entry in entries.values():
        order.touch(entry)
    return order, entries


def names(order):
    return "".join(entry.name for entry in order)


@pytest.mark.parametrize(
    ("verb", "name", "expected"),
    [
        ("touch", "a", "bca"),
        ("touch", "c", "abc"),
        ("demote", "c", "cab"),
        ("demote", "a", "abc"),
        ("discard", "b", "ac"),
    ],
)
def test_verbs_move_one_entry(verb, name, expected):
    order, entries = of("abc")
    getattr(order, verb)(entries[name])
    assert names(order) == expected
    assert (entries[name] in order) == (verb != "discard")
    assert len(order) == len(expected)


@pytest.mark.parametrize(("verb", "expected"), [("touch", "abx"), ("demote", "xab"), ("discard", "ab")])
def test_verbs_on_an_unknown_entry(verb, expected):
    order, _ = of("ab")
    getattr(order, verb)(Entry("x"))
    assert names(order) == expected


@pytest.mark.parametrize(("locked", "expected"), [("", "a"), ("a", "b"), ("ab", "c"), ("abc", None)])
def test_oldest_that_may_go(locked, expected):
    order, _ = of("abc")
    found = order.oldest(lambda entry: entry.name not in locked)
    assert (found.name if found else None) == expected
    assert names(order) == "abc"


@given(st.lists(st.tuples(st.sampled_from(["touch", "demote", "discard"]), st.sampled_from("abcd")), max_size=30))
def test_order_is_that_of_a_list(steps):
    order, entries = of("abcd")
    model = list("abcd")
    for verb, name in steps:
        getattr(order, verb)(entries[name])
        model = [other for other in model if other != name]
        model = {"touch": [*model, name], "demote": [name, *model], "discard": model}[verb]
        assert names(order) == "".join(model)
