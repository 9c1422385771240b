"""Packing and unpacking on any device, against the row-by-row definition."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from holdover.arch.layout import StateLayout
from holdover.codec import Codec, naive
from holdover.errors import CheckpointMismatchError, IntegrityError, PlanError
from holdover.retention import Element
from tests.codec.build import bytes_of, codecs, is_finite, layer, plan_of, poisoned, random_plan, random_pool

SEED = st.integers(0, 2**31)
LAYOUT = StateLayout((layer(0), layer(1), layer(3)))
PLAN = random_plan(LAYOUT, 1, 0.5)


@given(codecs(), SEED)
def test_pack_writes_the_defined_bytes_and_nothing_else(codec: Codec, seed: int) -> None:
    pool, records = random_pool(codec.layout, seed), poisoned(codec, 4)
    before = [bytes_of(pool, slot) for slot in range(4)]
    codec.pack(pool, [3, 1], records, [0, 2])
    assert codec.nbytes == len(naive.pack(codec, pool, 3))
    assert records[0].equal(naive.pack(codec, pool, 3))
    assert records[2].equal(naive.pack(codec, pool, 1))
    assert records[1].eq(0xAB).all()
    assert records[3].eq(0xAB).all()
    assert all(bytes_of(pool, slot).equal(before[slot]) for slot in range(4)), "packing changed the pool"


@given(codecs(), SEED)
def test_unpack_writes_the_defined_state_and_nothing_else(codec: Codec, seed: int) -> None:
    pool = random_pool(codec.layout, seed)
    records = torch.stack([naive.pack(codec, pool, slot) for slot in (1, 2)])
    kept = records.clone()
    target, expected = random_pool(codec.layout, seed + 1, slots=4), random_pool(codec.layout, slots=4)
    untouched = {slot: bytes_of(target, slot) for slot in (0, 1, 3)}
    for slot in (2, 4):
        target.poison(slot)
    codec.unpack(records, [1, 0], target, [4, 2])
    naive.unpack(codec, records[1], expected, 4)
    naive.unpack(codec, records[0], expected, 2)
    for slot in (2, 4):
        assert is_finite(target, slot), "a byte of the slot was not written"
        assert bytes_of(target, slot).equal(bytes_of(expected, slot))
    assert all(bytes_of(target, slot).equal(before) for slot, before in untouched.items())
    assert records.equal(kept)


@given(codecs(), SEED)
def test_retained_units_come_back_and_omitted_ones_are_zero(codec: Codec, seed: int) -> None:
    codec = replace(codec, element="full")
    pool, records = random_pool(codec.layout, seed), poisoned(codec)
    codec.pack(pool, [1], records, [0])
    codec.unpack(records, [0], pool, [2])
    for i, spec in enumerate(codec.layout.layers):
        state = pool.temporal(spec.index)
        mask = torch.ones(spec.units, dtype=torch.bool) if codec.plan is None else codec.plan.retained[i]
        rows = mask.view(spec.heads, -1, 1).expand(spec.heads, spec.d_k, spec.d_v)
        assert state[2].equal(torch.where(rows, state[1], torch.zeros_like(state[1])))
        assert pool.conv(spec.index)[2].equal(pool.conv(spec.index)[1])


@given(codecs(), SEED)
def test_ragged_and_padded_restore_the_same(codec: Codec, seed: int) -> None:
    pool = random_pool(codec.layout, seed)
    for slot, one in ((2, replace(codec, arrangement="ragged")), (3, replace(codec, arrangement="padded"))):
        records = poisoned(one)
        one.pack(pool, [1], records, [1])
        one.unpack(records, [1], pool, [slot])
    assert bytes_of(pool, 2).equal(bytes_of(pool, 3))


@given(SEED)
def test_cutoff_below_the_smallest_horizon_is_exact(seed: int) -> None:
    """Nothing is omitted, so the state comes back bit for bit, and the record is the dense one."""
    everything = plan_of(LAYOUT, [torch.ones(n, dtype=torch.bool) for n in LAYOUT.units_per_layer])
    codec, dense = Codec(LAYOUT, everything), Codec(LAYOUT)
    pool, records, reference = random_pool(LAYOUT, seed), poisoned(codec), poisoned(dense)
    codec.pack(pool, [1], records, [0])
    dense.pack(pool, [1], reference, [0])
    assert records[0].equal(reference[0])
    codec.unpack(records, [0], pool, [2])
    assert bytes_of(pool, 2).equal(bytes_of(pool, 1))
    assert codec.is_lossless
    assert codec.digest != dense.digest


@given(SEED, st.sampled_from(["float32", "float64"]))
def test_int8_is_within_half_a_step(seed: int, dtype: str) -> None:
    layout = replace(LAYOUT, temporal_dtype=dtype)
    codec = Codec(layout, element="int8")
    pool, records = random_pool(layout, seed), poisoned(codec)
    codec.pack(pool, [1], records, [0])
    codec.unpack(records, [0], pool, [2])
    for spec in layout.layers:
        exact, restored = pool.temporal(spec.index)[1].double(), pool.temporal(spec.index)[2].double()
        step = exact.abs().amax(-1, keepdim=True).clamp_min(1e-8) / 127
        # the quotient is rounded to float32 before it is rounded to an integer
        assert ((exact - restored).abs() <= step * (0.5 + 1e-5)).all()
        assert restored[exact == 0].eq(0).all()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_stays_visible(value: float) -> None:
    for element, marked in (("full", 1), ("bfloat16", 1), ("int8", 8)):
        codec = Codec(LAYOUT, element=element)  # type: ignore[arg-type]
        pool, records = random_pool(LAYOUT), poisoned(codec)
        pool.temporal(1)[1, 1, 2, 5] = value
        codec.pack(pool, [1], records, [0])
        assert records[0].equal(naive.pack(codec, pool, 1))
        codec.unpack(records, [0], pool, [2])
        wrong = ~pool.temporal(1)[2].isfinite()
        assert int(wrong.sum()) == marked
        assert wrong[1, 2, 5]
        assert pool.temporal(0)[2].isfinite().all()


@given(codecs(), SEED)
def test_copy_omitted_changes_omitted_units_alone(codec: Codec, seed: int) -> None:
    pool, expected = random_pool(codec.layout, seed), random_pool(codec.layout, seed)
    codec.copy_omitted(pool, 3, 2)
    for i, spec in enumerate(codec.layout.layers):
        state = expected.temporal(spec.index)
        for unit in range(spec.units):
            if codec.plan is not None and not codec.plan.retained[i][unit]:
                place = (unit,) if spec.unit == "head" else divmod(unit, spec.d_k)
                state[(2, *place)] = state[(3, *place)]
    assert all(bytes_of(pool, slot).equal(bytes_of(expected, slot)) for slot in range(4))


def test_names_and_digests() -> None:
    found = {
        "dense": Codec(LAYOUT),
        "dense+int8": Codec(LAYOUT, element="int8"),
        "ragged": Codec(LAYOUT, PLAN),
        "padded": Codec(LAYOUT, PLAN, "padded"),
        "ragged+bfloat16": Codec(LAYOUT, PLAN, element="bfloat16"),
        "padded+int8": Codec(LAYOUT, PLAN, "padded", "int8"),
    }
    assert [codec.name for codec in found.values()] == list(found)
    digests = {codec.digest for codec in found.values()}
    digests |= {Codec(LAYOUT, PLAN.random_like(0)).digest, Codec(replace(LAYOUT, conv_dtype="float32")).digest}
    assert len(digests) == len(found) + 2
    assert Codec(LAYOUT, arrangement="padded").digest == Codec(LAYOUT).digest


@pytest.mark.parametrize(
    ("omits", "lossless", "plan", "element"),
    [(False, True, None, "full"), (False, False, None, "int8"), (True, False, PLAN, "full")],
)
def test_what_is_lost(omits: bool, lossless: bool, plan: object, element: Element) -> None:
    codec = Codec(LAYOUT, plan, element=element)  # type: ignore[arg-type]
    assert (codec.omits, codec.is_lossless) == (omits, lossless)


def test_unpacked_slot_is_nobodys_until_it_is_told() -> None:
    codec, pool = Codec(LAYOUT), random_pool(LAYOUT)
    pool.reset(1, b"n")
    pool.reset(2, b"n")
    records = poisoned(codec)
    codec.pack(pool, [1], records, [0])
    codec.unpack(records, [0], pool, [2])
    assert pool.is_whole(1)
    assert not pool.is_whole(2)


def test_a_record_of_nothing_is_refused() -> None:
    layout = StateLayout((layer(0, width=1),))
    with pytest.raises(PlanError, match="nothing to store"):
        _ = Codec(layout, random_plan(layout, 0, 0)).nbytes


def test_plan_of_another_layout_is_refused() -> None:
    with pytest.raises(PlanError, match="another layout"):
        Codec(StateLayout((layer(0),)), PLAN)
    Codec(replace(LAYOUT, conv_dtype="float32", temporal_dtype="float64"), PLAN)


@pytest.mark.parametrize(
    ("slots", "targets", "message"),
    [
        ([1], [3], r"records \[3\] of 3"),
        ([1], [-1], r"records \[-1\] of 3"),
        ([1, 2], [0], r"records \[0\] of 3"),
        ([0], [0], r"among 1\.\.3"),
        ([4], [0], r"among 1\.\.3"),
        ([1, 2], [0, 0], "twice"),
    ],
)
def test_wrong_indices_are_refused(slots: list[int], targets: list[int], message: str) -> None:
    codec, pool = Codec(LAYOUT, PLAN), random_pool(LAYOUT)
    records = poisoned(codec)
    with pytest.raises(IntegrityError, match=message):
        codec.pack(pool, slots, records, targets)
    assert records.eq(0xAB).all()


def test_other_pools_and_records_are_refused() -> None:
    codec = Codec(LAYOUT, PLAN)
    pool, records = random_pool(LAYOUT), poisoned(codec)
    with pytest.raises(CheckpointMismatchError, match="layout"):
        codec.pack(random_pool(replace(LAYOUT, conv_dtype="float32")), [1], records, [0])
    for wrong in (records[:, 1:], records[0], records.view(torch.int8), poisoned(Codec(LAYOUT)), records.repeat(1, 2)):
        with pytest.raises(CheckpointMismatchError, match="needs uint8"):
            codec.pack(pool, [1], wrong, [0])
    with pytest.raises(CheckpointMismatchError, match="contiguous"):
        codec.pack(pool, [1], records.repeat(1, 2)[:, : codec.nbytes], [0])
    with pytest.raises(IntegrityError, match="twice"):
        codec.unpack(records, [0, 1], pool, [1, 1])
