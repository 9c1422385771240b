from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from holdover.errors import CapacityError, IntegrityError, OwnershipError
from holdover.store import SINK_ROW, KVPool
from tests.store.build import LAYOUTS, MIXED, ONE, assert_rows_of, write_rows

every_layout = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)


def pool(rows=6, layout=ONE):
    return KVPool(layout, rows, poison=True)


def ids(*rows):
    return torch.tensor(rows, dtype=torch.int64)


# accounting (class 18)


@every_layout
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("rows", [0, 1, 7])
def test_bytes_estimated_are_bytes_allocated(layout, dtype, rows):
    layout = replace(layout, dtype=dtype)
    kv = KVPool(layout, rows)
    tensors = [value for value in vars(kv).values() if isinstance(value, torch.Tensor)]
    tensors += [plane for layer in layout.layers for plane in kv.planes(layer.index)]
    assert KVPool.bytes_for(layout, rows) == kv.nbytes == sum(t.numel() * t.element_size() for t in tensors)
    assert {t.dtype for layer in layout.layers for t in kv.planes(layer.index)} <= {getattr(torch, dtype)}


# rows


def test_rows_are_neighbours_in_a_fresh_pool_and_never_the_sink():
    kv = pool()
    assert kv.allocate(2).tolist() == [1, 2]
    assert kv.allocate(4).tolist() == [3, 4, 5, 6]
    assert SINK_ROW not in range(1, 7)


def test_rows_given_back_come_out_as_neighbours_again():
    kv = pool()
    kv.free(kv.allocate(4))
    assert kv.allocate(3).tolist() == [1, 2, 3]


@pytest.mark.parametrize("count", [-1, 4, 7])
def test_allocating_what_is_not_there_takes_nothing(count):
    kv = pool()
    kv.allocate(3)
    with pytest.raises(CapacityError, match=f"{count} KV rows wanted, 3 of 6 are free"):
        kv.allocate(count)
    assert kv.num_free == 3
    kv.check_integrity()


def test_allocating_nothing_is_allowed_when_nothing_is_free():
    kv = pool()
    kv.allocate(6)
    assert len(kv.allocate(0)) == 0


@pytest.mark.parametrize(
    ("again", "named"),
    [
        (ids(2), [2]),
        (ids(1, 2), [2]),
        (ids(5), [5]),
        (ids(1, 1), [1]),
        (ids(3, 1, 3), [3]),
        (ids(SINK_ROW), [SINK_ROW]),
        (ids(1, SINK_ROW), [SINK_ROW]),
    ],
    ids=["freed", "one-freed", "never-taken", "named-twice", "named-twice-apart", "sink", "with-sink"],
)
def test_row_freed_twice_raises_and_frees_nothing(again, named):
    kv = pool()
    kv.allocate(4)
    kv.free(ids(2))
    with pytest.raises(OwnershipError, match=str(named).replace("[", r"\[")):
        kv.free(again)
    assert kv.num_free == 3
    assert kv.are_used(ids(1, 3, 4))
    kv.check_integrity()


@pytest.mark.parametrize(
    ("rows", "used"),
    [
        (ids(), True),
        (ids(1), True),
        (ids(2, 1), True),
        (ids(3), False),
        (ids(1, 3), False),
        (ids(2, 1, 2), False),
        (ids(SINK_ROW), False),
    ],
)
def test_rows_in_use(rows, used):
    kv = pool()
    kv.allocate(2)
    assert kv.are_used(rows) is used


@given(st.lists(st.integers(-4, 4), max_size=20), st.randoms(use_true_random=False))
def test_every_row_has_one_owner_whatever_the_order(steps, random):
    kv = pool(8)
    owned = []
    for step in steps:
        if step >= 0 and step <= kv.num_free:
            owned += kv.allocate(step).tolist()
        elif step < 0:
            random.shuffle(owned)
            kv.free(torch.tensor(owned[:-step], dtype=torch.int64))
            owned = owned[-step:]
        assert len(set(owned)) == len(owned) == 8 - kv.num_free
        assert set(owned) <= set(range(1, 9))
        kv.check_integrity()


# contents


@every_layout
def test_rows_hold_what_was_written_in_any_order_and_no_other_row_changes(layout):
    kv = pool(6, layout)
    rows = kv.allocate(6)[[4, 0, 3]]
    write_rows(kv, rows, [9, 8, 7])
    assert_rows_of(kv, rows, [9, 8, 7])
    others = [row for row in range(7) if row not in rows.tolist()]
    assert all(plane[others].isnan().all() for layer in layout.layers for plane in kv.planes(layer.index))


@every_layout
def test_fresh_and_freed_rows_are_poison(layout):
    kv = pool(4, layout)
    planes = [plane for layer in layout.layers for plane in kv.planes(layer.index)]
    assert all(plane.isnan().all() for plane in planes)
    rows = kv.allocate(3)
    write_rows(kv, rows, [1, 2, 3])
    kv.free(rows[1:])
    assert all(plane[rows[1:]].isnan().all() for plane in planes)
    assert_rows_of(kv, rows[:1], [1])


def test_values_are_stored_in_the_dtype_of_the_layout():
    kv = KVPool(replace(MIXED, dtype="bfloat16"), 2)
    values = torch.full((1, 2, 3), 1 + 2**-12)
    kv.write(4, kv.allocate(1), values, values[..., :1])
    first, second = kv.planes(4)
    assert first[1].eq(1).all()
    assert second[1].eq(1).all()


# integrity


def leak(kv):
    kv._num_free -= 1


def both(kv):
    kv._is_used[6] = True


def neither(kv):
    kv._is_used[1] = False


def twice(kv):
    kv._free[0] = kv._free[1]


@pytest.mark.parametrize("damage", [leak, both, neither, twice])
def test_integrity_check_finds_damage(damage):
    kv = pool()
    kv.allocate(2)
    kv.check_integrity()
    damage(kv)
    with pytest.raises(IntegrityError):
        kv.check_integrity()
